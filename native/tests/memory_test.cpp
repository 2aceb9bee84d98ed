// The cache on a machine that runs out of memory: the answer is there, only the copy is not.
//
// Every allocation goes through the two operators below, also under the sanitizers, which watch malloc instead.

#include "../vision_embedding_cache.h"
#include "check.h"

namespace {

int allocations_left = -1; // below 0: as many as anybody wants

} // namespace

// Inlined, GCC takes free() for the wrong counterpart of this.
__attribute__((noinline)) void * operator new(size_t size) {
    if (allocations_left == 0) {
        throw std::bad_alloc();
    }
    if (allocations_left > 0) {
        --allocations_left;
    }
    void * memory = std::malloc(size);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

__attribute__((noinline)) void operator delete(void * memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void * memory, size_t) noexcept { std::free(memory); }

using jev::lookup;
using floats = std::vector<float>;

namespace {

void memory_may_run_out_at_any_point_of_storing() {
    int failures = 0;
    for (int allowed = 0;; ++allowed) {
        lookup heard = lookup::failed;
        jev::cache_use use{};
        jev::vision_embedding_cache cache(1 << 20, [&](lookup what, const jev::cache_use & now) {
            heard = what;
            use = now;
        });
        floats out(64);
        const auto ask = [&](int limit) {
            std::string key(100, 'k'); // too long to be kept within the string itself
            return cache.get_or_compute(std::move(key), out, [&] {
                out.assign(64, 7.0f);
                allocations_left = limit;
                return true;
            });
        };
        const bool worked = ask(allowed);
        allocations_left = -1;
        CHECK(worked && out == floats(64, 7.0f));
        if (heard == lookup::stored) {
            CHECK(use.entries == 1);
            break;
        }
        ++failures;
        CHECK(heard == lookup::no_memory && use.entries == 0 && use.bytes == 0);
        CHECK(ask(-1) && heard == lookup::stored); // and with memory it works again
        CHECK(ask(-1) && heard == lookup::hit && use.entries == 1);
    }
    CHECK(failures >= 3); // the list, the values, the table
}

void what_was_there_survives_it() {
    lookup heard = lookup::failed;
    jev::vision_embedding_cache cache(
        2 * (1 + 4 * sizeof(float)), [&](lookup what, const jev::cache_use &) { heard = what; });
    floats out(4);
    const auto ask = [&](const char * key, int limit) {
        const bool worked = cache.get_or_compute(key, out, [&] {
            allocations_left = limit;
            return true;
        });
        allocations_left = -1;
        return worked;
    };
    CHECK(ask("a", -1) && ask("b", -1));
    CHECK(ask("c", 0) && heard == lookup::no_memory); // there is no room for it either, and nobody had to go
    CHECK(ask("a", -1) && heard == lookup::hit);
    CHECK(ask("b", -1) && heard == lookup::hit);
}

void a_computation_without_memory_is_an_exception_like_others() {
    jev::vision_embedding_cache cache(1024);
    floats out(4);
    bool passed = false;
    try {
        cache.get_or_compute("a", out, []() -> bool { throw std::bad_alloc(); });
    } catch (const std::bad_alloc &) {
        passed = true;
    }
    CHECK(passed);
}

} // namespace

int main() {
    RUN(memory_may_run_out_at_any_point_of_storing);
    RUN(what_was_there_survives_it);
    RUN(a_computation_without_memory_is_an_exception_like_others);
}
