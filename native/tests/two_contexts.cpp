// Two model contexts in one process, with the patched libmtmd and a model: what one has seen, the other has not.
//
//     two_contexts MODEL.gguf MMPROJ.gguf
//
// Prints what each encoding was. scripts/prove_image_cache.py compiles and runs it.

#include "llama.h"
#include "mtmd.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

std::string heard; // what the cache said of the encoding that is going on

void listen(ggml_log_level, const char * text, void *) {
    if (std::strncmp(text, "JEV_IMAGE_CACHE ", 16) == 0) {
        heard += std::strncmp(text + 16, "hit", 3) == 0 ? "hit " : "miss ";
    }
}

[[noreturn]] void give_up(const char * why) {
    std::fprintf(stderr, "%s\n", why);
    std::exit(1);
}

struct context {
    std::unique_ptr<mtmd_context, decltype(&mtmd_free)> mtmd{nullptr, mtmd_free};
    int n_embd;

    context(const char * projector, const llama_model * model) : n_embd(llama_model_n_embd_inp(model)) {
        mtmd_context_params params = mtmd_context_params_default();
        params.use_gpu = false;
        params.print_timings = false;
        mtmd.reset(mtmd_init_from_file(projector, model, params));
        if (!mtmd) {
            give_up("the projector does not load");
        }
    }

    // The embedding of a small picture, always the same one.
    std::vector<float> encode() {
        std::vector<unsigned char> pixels(96 * 64 * 3);
        for (size_t i = 0; i < pixels.size(); ++i) {
            pixels[i] = static_cast<unsigned char>(i * 31 % 251);
        }
        const std::string text = mtmd_default_marker();
        const mtmd_input_text input{text.c_str(), text.size(), /* add_special */ true, /* parse_special */ true};
        std::unique_ptr<mtmd_bitmap, decltype(&mtmd_bitmap_free)> bitmap(
            mtmd_bitmap_init(96, 64, pixels.data()), mtmd_bitmap_free);
        std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)> chunks(
            mtmd_input_chunks_init(), mtmd_input_chunks_free);
        const mtmd_bitmap * bitmaps[] = {bitmap.get()};
        if (mtmd_tokenize(mtmd.get(), chunks.get(), &input, bitmaps, 1) != 0) {
            give_up("the picture is not taken");
        }
        std::vector<float> result;
        for (size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
            const mtmd_input_chunk * chunk = mtmd_input_chunks_get(chunks.get(), i);
            if (mtmd_input_chunk_get_type(chunk) != MTMD_INPUT_CHUNK_TYPE_IMAGE) {
                continue;
            }
            if (mtmd_encode_chunk(mtmd.get(), chunk) != 0) {
                give_up("the picture is not encoded");
            }
            const float * values = mtmd_get_output_embd(mtmd.get());
            result.assign(values, values + mtmd_input_chunk_get_n_tokens(chunk) * static_cast<size_t>(n_embd));
        }
        return result;
    }
};

std::vector<float> first; // the embedding that all the others have to be, to the last bit

void expect(context & it, const char * who, const char * what) {
    heard.clear();
    const std::vector<float> values = it.encode();
    std::printf("%s: %s\n", who, heard.c_str());
    first = first.empty() ? values : first;
    if (values.empty() || values.size() != first.size() ||
        std::memcmp(values.data(), first.data(), values.size() * sizeof(float)) != 0) {
        give_up("another embedding than before");
    }
    if (heard != what) {
        give_up("that was not to be expected");
    }
}

} // namespace

int main(int argc, char ** argv) {
    if (argc != 3) {
        give_up("usage: two_contexts MODEL.gguf MMPROJ.gguf");
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    mtmd_log_set(listen, nullptr);
    llama_backend_init();
    std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
        llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free);
    if (!model) {
        give_up("the model does not load");
    }
    auto one = std::make_unique<context>(argv[2], model.get());
    context other(argv[2], model.get());
    expect(*one, "one", "miss ");
    expect(other, "the other", "miss ");
    expect(*one, "one again", "hit ");
    expect(other, "the other again", "hit ");
    one.reset();
    expect(other, "the other, with one gone", "hit ");
    context third(argv[2], model.get());
    expect(third, "a new one", "miss ");
}
