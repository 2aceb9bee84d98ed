// The three places of llama.cpp's mtmd.cpp that the patch knows, with as much around them as makes them a program.
#include "mtmd.h"

#include "mtmd-image.h"
#include "debug/mtmd-debug.h"

#include <cstdio>
#include <cstdlib>

#define LOG_WRN(...) (std::printf("0.00.000.000 W " __VA_ARGS__), std::fflush(stdout))

int base();

struct clip_ctx {};

static bool clip_image_batch_encode(clip_ctx *, int, const clip_image_f32_batch * batch, std::vector<float> & out) {
    out.assign(batch->entries.size(), 1.0f);
    return base() == 1;
}

struct mtmd_context {
    clip_ctx * ctx_v = nullptr;
    int n_threads = 1;

    // batching
    int32_t batch_max_tokens;

    projector_type proj_type_v() const { return PROJECTOR_TYPE_LFM2; }
};

static int mtmd_encode(mtmd_context * ctx, const mtmd_image_tokens * image_tokens, std::vector<float> & out_embd) {
    clip_ctx * ctx_clip = ctx->ctx_v;
    [[maybe_unused]] const int n_embd_out = 1, n_tokens_out = 1;

    bool ok = clip_image_batch_encode(
        ctx_clip,
        ctx->n_threads,
        &image_tokens->batch_f32,
        out_embd);

    return ok ? 0 : 1;
}

bool encode_picture() {
    static mtmd_context context;
    static const mtmd_image_tokens picture;
    std::vector<float> embedding;
    return mtmd_encode(&context, &picture, embedding) == 0;
}
