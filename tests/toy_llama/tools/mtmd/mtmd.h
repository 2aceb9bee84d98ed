// Encodes the only picture that there is here. False: that failed.
#pragma once

bool encode_picture();
