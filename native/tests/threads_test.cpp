// The cache from many threads: nobody computes what somebody else is computing.

#include "../vision_embedding_cache.h"
#include "check.h"

#include <atomic>
#include <chrono>
#include <thread>

using jev::lookup;
using jev::vision_embedding_cache;
using floats = std::vector<float>;

namespace {

constexpr int THREADS = 8;

// All of them at once, once all of them are there.
template <typename Work> void at_once(Work work) {
    std::atomic<int> here{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < THREADS; ++number) {
        threads.emplace_back([&, number] {
            ++here;
            while (here < THREADS) {
                std::this_thread::yield();
            }
            work(number);
        });
    }
    for (auto & thread : threads) {
        thread.join();
    }
}

struct counts {
    std::atomic<int> hits{0};
    std::atomic<int> misses{0};

    vision_embedding_cache::listener ear() {
        return [this](lookup what, const jev::cache_use &) { ++(what == lookup::hit ? hits : misses); };
    }
};

void eight_that_come_for_the_same_cost_one_computation() {
    counts heard;
    vision_embedding_cache cache(1024, heard.ear());
    std::atomic<int> computed{0};
    at_once([&](int) {
        floats out(2);
        CHECK(cache.get_or_compute("picture", out, [&] {
            ++computed;
            std::this_thread::sleep_for(std::chrono::milliseconds(20)); // an encoder takes its time
            out = {1, 2};
            return true;
        }));
        CHECK((out == floats{1, 2}));
    });
    CHECK(computed == 1 && heard.misses == 1 && heard.hits == THREADS - 1);
}

void who_waited_for_a_failure_tries_again() {
    vision_embedding_cache cache(1024);
    std::atomic<int> computed{0};
    std::atomic<int> worked{0};
    at_once([&](int) {
        floats out(1);
        try {
            worked += cache.get_or_compute("picture", out, [&]() -> bool {
                switch (++computed) {
                    case 1: return false;
                    case 2: throw std::runtime_error("no");
                    default: out = {3}; return true;
                }
            });
        } catch (const std::runtime_error &) {
        }
    });
    CHECK(computed == 3 && worked == THREADS - 2);
}

void answers_stay_right_while_entries_come_and_go() {
    counts heard;
    vision_embedding_cache cache(4 * (1 + 8 * sizeof(float)), heard.ear()); // four of the six
    constexpr int ROUNDS = 500;
    at_once([&](int number) {
        for (int round = 0; round < ROUNDS; ++round) {
            const int which = (round * (number + 1) + number) % 6;
            floats out(8);
            CHECK(cache.get_or_compute(std::string(1, static_cast<char>('a' + which)), out, [&] {
                out.assign(8, static_cast<float>(which));
                return true;
            }));
            CHECK(out == floats(8, static_cast<float>(which)));
        }
    });
    CHECK(heard.hits + heard.misses == THREADS * ROUNDS);
    CHECK(heard.misses >= 6);
}

void two_caches_do_not_wait_for_each_other() {
    vision_embedding_cache one(1024);
    vision_embedding_cache other(1024);
    floats out(1);
    CHECK(one.get_or_compute("picture", out, [&] {
        bool inner = false;
        std::thread([&] { // with one lock for both, this would never end
            floats theirs(1);
            inner = other.get_or_compute("picture", theirs, [&] { return true; });
        }).join();
        return inner;
    }));
}

} // namespace

int main() {
    RUN(eight_that_come_for_the_same_cost_one_computation);
    RUN(who_waited_for_a_failure_tries_again);
    RUN(answers_stay_right_while_entries_come_and_go);
    RUN(two_caches_do_not_wait_for_each_other);
}
