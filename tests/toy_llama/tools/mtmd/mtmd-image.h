// Of llama.cpp's types, what the patch names.
#pragma once

#include <cstdint>
#include <vector>

enum projector_type { PROJECTOR_TYPE_LFM2 = 1 };

struct clip_image_f32 {
    bool add_viewsep = false;
    bool add_newline = false;
    int32_t lead_pad = 0;

    struct {
        int grid_x = 0, grid_y = 0, orig_nx = 0, orig_ny = 0;
    } anyres;

    int nx() const { return nx_; }
    int ny() const { return ny_; }
    const std::vector<float> & get_ro_buf() const { return buf; }

  private:
    int nx_ = 2, ny_ = 2;
    std::vector<float> buf = std::vector<float>(12, 0.5f);
};

struct clip_image_f32_batch {
    std::vector<clip_image_f32> entries = std::vector<clip_image_f32>(1);
    bool is_audio = false;
};

struct mtmd_image_tokens {
    uint32_t nx = 1, ny = 1, pos = 0, image_idx = 0, n_temporal_merge = 1;
    clip_image_f32_batch batch_f32;
};
