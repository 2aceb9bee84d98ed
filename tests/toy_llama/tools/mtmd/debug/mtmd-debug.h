// Included where llama.cpp includes its own.
#pragma once
