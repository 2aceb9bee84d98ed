// The cache from one thread: what is kept, for how long, and what is not.

#include "../vision_embedding_cache.h"
#include "check.h"

#include <limits>

using jev::lookup;
using jev::vision_embedding_cache;
using floats = std::vector<float>;

namespace {

// A cache that remembers what it told. Every value is `cost` bytes large, its key of one byte included.
struct heard_cache {
    explicit heard_cache(size_t limit)
        : cache(limit, [this](lookup what, const jev::cache_use & use) {
              told.push_back(what);
              last = use;
          }) {}

    floats ask(char name, size_t count = 2) {
        floats out(count);
        const bool worked = cache.get_or_compute(std::string(1, name), out, [&] {
            computed += name;
            out.assign(count, static_cast<float>(name));
            return true;
        });
        CHECK(worked);
        CHECK(out == floats(count, static_cast<float>(name)));
        return out;
    }

    bool has(char name) {
        const size_t before = computed.size();
        ask(name);
        return computed.size() == before;
    }

    std::string computed;
    std::vector<lookup> told;
    jev::cache_use last{};
    vision_embedding_cache cache;
};

constexpr size_t COST = 1 + 2 * sizeof(float);

void computes_once_and_then_answers_from_memory() {
    heard_cache it(10 * COST);
    floats first = it.ask('a');
    first.assign(first.size(), -1.0f); // the caller's copy, not ours
    it.ask('a');
    it.ask('a');
    CHECK(it.computed == "a");
    CHECK((it.told == std::vector<lookup>{lookup::stored, lookup::hit, lookup::hit}));
    CHECK(it.last.entries == 1 && it.last.bytes == COST && it.last.limit == 10 * COST);
}

void drops_what_was_used_longest_ago() {
    heard_cache it(3 * COST);
    it.ask('a');
    it.ask('b');
    it.ask('c');
    it.ask('a'); // b is the oldest now
    it.ask('d');
    CHECK(it.last.entries == 3 && it.last.bytes == 3 * COST);
    CHECK(it.has('a') && it.has('c') && it.has('d'));
    CHECK(!it.has('b'));
}

void drops_as_many_as_it_takes() {
    heard_cache it(3 * COST);
    it.ask('a');
    it.ask('b');
    it.ask('c');
    it.ask('L', 4); // 1 + 4 * 4 bytes: the room of two
    CHECK(it.last.entries == 2 && it.last.bytes == COST + 17);
    CHECK(it.has('c'));
    CHECK(!it.has('a'));
}

void fills_the_limit_to_the_last_byte() {
    heard_cache it(2 * COST);
    it.ask('a');
    it.ask('b');
    CHECK(it.last.entries == 2 && it.last.bytes == it.last.limit);
    CHECK(it.has('a') && it.has('b'));
}

void answers_what_is_too_large_and_drops_nothing_for_it() {
    heard_cache it(2 * COST);
    it.ask('a');
    it.ask('b');
    it.ask('L', 100);
    it.ask('L', 100);
    CHECK(it.computed == "abLL");
    CHECK(it.told.back() == lookup::too_large);
    CHECK(it.has('a') && it.has('b'));
}

void keeps_no_failure() {
    heard_cache it(10 * COST);
    floats out(2);
    CHECK(!it.cache.get_or_compute("a", out, [] { return false; }));
    CHECK(it.told.back() == lookup::failed && it.last.entries == 0);
    CHECK(!it.has('a'));
    CHECK(it.has('a'));
}

void lets_exceptions_pass_and_goes_on() {
    heard_cache it(10 * COST);
    floats out(2);
    bool passed = false;
    try {
        it.cache.get_or_compute("a", out, []() -> bool { throw std::runtime_error("no"); });
    } catch (const std::runtime_error &) {
        passed = true;
    }
    CHECK(passed && it.told.empty());
    CHECK(!it.has('a')); // nor is the lock held for ever
    CHECK(it.has('a'));
}

void two_caches_know_nothing_of_each_other() {
    heard_cache one(10 * COST);
    heard_cache other(10 * COST);
    one.ask('a');
    CHECK(!other.has('a'));
    CHECK(one.has('a'));
    {
        heard_cache gone(10 * COST);
        gone.ask('b');
    }
    CHECK(!one.has('b'));
}

void is_off_with_no_limit() {
    CHECK(!vision_embedding_cache(0).is_on());
    CHECK(vision_embedding_cache(1).is_on());
    heard_cache it(0); // and would keep nothing
    it.ask('a');
    CHECK(!it.has('a'));
}

std::string key_of(std::initializer_list<int64_t> numbers, const floats & pixels) {
    jev::cache_key key(pixels.size() * sizeof(float), numbers.size() + 1);
    for (const int64_t number : numbers) {
        key.add(number);
    }
    return key.add(pixels).take();
}

void keys_differ_where_anything_differs() {
    const floats pixels = {0.25f, 0.5f};
    const std::string key = key_of({512, 256}, pixels);
    CHECK(key == key_of({512, 256}, {0.25f, 0.5f}));
    CHECK(key.size() == 3 * sizeof(uint64_t) + 2 * sizeof(float));
    CHECK(key.capacity() == key.size()); // memory that is paid for but not counted
    CHECK(key != key_of({256, 512}, pixels));
    CHECK(key != key_of({512, 256}, {0.5f, 0.25f}));
    CHECK(key != key_of({512, 256}, {0.25f}));
    CHECK(key != key_of({512, 256, 0}, pixels));
    CHECK(key != key_of({512, -256}, pixels));
    CHECK(key_of({1, 23}, {}) != key_of({12, 3}, {}));
    CHECK(key_of({}, {0.0f}) != key_of({}, {-0.0f}));
    const float one_bit_more = 0.25f + std::numeric_limits<float>::epsilon() / 4;
    CHECK(one_bit_more != 0.25f && key != key_of({512, 256}, {one_bit_more, 0.5f}));
}

void tells_keys_apart_that_begin_and_end_alike() {
    heard_cache it(1024);
    floats out;
    const auto answer = [&](const std::string & key, float value) {
        it.cache.get_or_compute(key, out, [&] {
            out = {value};
            return true;
        });
        return out.at(0);
    };
    const std::string with_zero("a\0b", 3);
    CHECK(answer(with_zero, 1) == 1);
    CHECK(answer("a", 2) == 2);
    CHECK(answer(std::string("a\0c", 3), 3) == 3);
    CHECK(answer(with_zero, 9) == 1);
}

bool refuses(const char * text) {
    try {
        jev::limit_in_bytes(text);
    } catch (const std::invalid_argument & error) {
        const std::string said = error.what();
        return said.find("JEV_IMAGE_CACHE_MIB") != std::string::npos && said.find(text) != std::string::npos;
    }
    return false;
}

void reads_the_limit_or_refuses_it() {
    CHECK(jev::limit_in_bytes(nullptr) == 128 * jev::MIB);
    CHECK(jev::limit_in_bytes("0") == 0);
    CHECK(jev::limit_in_bytes("1") == jev::MIB);
    CHECK(jev::limit_in_bytes("0016") == 16 * jev::MIB);
    CHECK(jev::limit_in_bytes("4096") == 4096 * jev::MIB);
    for (const char * bad : {"", " ", "abc", "-1", "+1", "1.5", "1e2", "12 ", " 12", "0x10", "4097", "99999",
                             "18446744073709551616", "1\n", "128MiB"}) {
        CHECK(refuses(bad));
    }
}

void logs_what_people_count() {
    const jev::cache_use use{3, 500, 1000};
    CHECK(jev::log_line(lookup::hit, use) == "JEV_IMAGE_CACHE hit, 3 entries in 500 of 1000 bytes\n");
    for (const lookup what : {lookup::stored, lookup::too_large, lookup::no_memory, lookup::failed}) {
        CHECK(jev::log_line(what, use).rfind("JEV_IMAGE_CACHE miss", 0) == 0);
    }
}

} // namespace

int main() {
    RUN(computes_once_and_then_answers_from_memory);
    RUN(drops_what_was_used_longest_ago);
    RUN(drops_as_many_as_it_takes);
    RUN(fills_the_limit_to_the_last_byte);
    RUN(answers_what_is_too_large_and_drops_nothing_for_it);
    RUN(keeps_no_failure);
    RUN(lets_exceptions_pass_and_goes_on);
    RUN(two_caches_know_nothing_of_each_other);
    RUN(is_off_with_no_limit);
    RUN(keys_differ_where_anything_differs);
    RUN(tells_keys_apart_that_begin_and_end_alike);
    RUN(reads_the_limit_or_refuses_it);
    RUN(logs_what_people_count);
}
