// What an image encoder gave for pictures it has seen before: an LRU in memory, for one model context.
//
// Knows nothing of llama.cpp, so that it can be tested alone. The caller says with a cache_key what decides the result,
// and how to compute it. Standard library and C++17 only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jev {

constexpr size_t MIB = 1024 * 1024;
constexpr size_t DEFAULT_LIMIT_MIB = 128;
constexpr size_t LARGEST_LIMIT_MIB = 4096;

// Bytes for a value of JEV_IMAGE_CACHE_MIB; nullptr, the variable being unset, means the default. Anything else than a
// plain number within bounds throws: a limit that is not the one asked for would be found out much later, if at all.
inline size_t limit_in_bytes(const char * mib) {
    if (mib == nullptr) {
        return DEFAULT_LIMIT_MIB * MIB;
    }
    const std::string_view text(mib);
    size_t number = 0;
    bool good = !text.empty() && text.size() <= 4; // 4 digits cannot overflow
    for (const char c : text) {
        good = good && c >= '0' && c <= '9';
        number = good ? number * 10 + static_cast<size_t>(c - '0') : 0;
    }
    if (!good || number > LARGEST_LIMIT_MIB) {
        throw std::invalid_argument("JEV_IMAGE_CACHE_MIB has to be a whole number from 0 (no cache) to " +
                                    std::to_string(LARGEST_LIMIT_MIB) + ", and is '" + std::string(text) + "'");
    }
    return number * MIB;
}

// The bytes of everything that decides a result, and not a digest of them: two pictures can never share a key.
class cache_key {
  public:
    explicit cache_key(size_t payload_bytes, size_t numbers) {
        bytes_.reserve(payload_bytes + numbers * sizeof(uint64_t)); // the doubling of a string would not be counted
    }

    // Every number takes 64 bits, so that neighbouring fields cannot run into each other.
    template <typename Integer> cache_key & add(Integer number) {
        const auto wide = static_cast<uint64_t>(number);
        bytes_.append(reinterpret_cast<const char *>(&wide), sizeof(wide));
        return *this;
    }

    // As they are in memory, after their length. Equal floats of different bits (0 and -0) are different here.
    cache_key & add(const std::vector<float> & values) {
        add(values.size());
        bytes_.append(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(float));
        return *this;
    }

    std::string take() { return std::move(bytes_); }

  private:
    std::string bytes_;
};

enum class lookup {
    hit,
    stored,    // computed, and there for the next one
    too_large, // computed; alone over the limit, so nothing had to go for it
    no_memory, // computed; there was no room for a copy
    failed,    // the computation said no
};

struct cache_use {
    size_t entries;
    size_t bytes;
    size_t limit;
};

class vision_embedding_cache {
  public:
    // Called once for every lookup that came to an end, under the lock: in the order of the lookups.
    using listener = std::function<void(lookup, const cache_use &)>;

    explicit vision_embedding_cache(size_t limit, listener heard = {}) : limit_(limit), heard_(std::move(heard)) {}

    vision_embedding_cache(const vision_embedding_cache &) = delete;
    vision_embedding_cache & operator=(const vision_embedding_cache &) = delete;

    bool is_on() const { return limit_ > 0; }

    // Fills `out` from the cache, or by `compute`, which fills `out` itself and returns whether that worked. Only what
    // worked is kept. An exception of `compute` passes through.
    //
    // One lock around everything: who comes for a picture that is being computed waits for it instead of computing it
    // again, and an encoder can run only one picture at a time anyway.
    template <typename Compute> bool get_or_compute(std::string key, std::vector<float> & out, Compute && compute) {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = by_key_.find(key);
        if (found != by_key_.end()) {
            out = found->second->values; // a copy: the caller may keep it for longer than we keep ours
            entries_.splice(entries_.begin(), entries_, found->second);
            tell(lookup::hit);
            return true;
        }
        if (!compute()) {
            tell(lookup::failed);
            return false;
        }
        tell(store(std::move(key), out));
        return true;
    }

  private:
    struct entry {
        std::string key;
        std::vector<float> values;

        size_t cost() const { return key.size() + values.size() * sizeof(float); }
    };
    using entries = std::list<entry>; // the one used last is first

    lookup store(std::string key, const std::vector<float> & values) {
        const size_t cost = key.size() + values.size() * sizeof(float);
        if (cost > limit_) {
            return lookup::too_large;
        }
        // Everything that can fail comes before anything that changes the books. The answer is there already, so a
        // machine without memory for a copy is no reason to lose it.
        entries fresh;
        try {
            fresh.push_back({std::move(key), values});
            by_key_.emplace(fresh.front().key, fresh.begin());
        } catch (const std::bad_alloc &) {
            return lookup::no_memory;
        }
        while (bytes_ > limit_ - cost) {
            drop_oldest();
        }
        entries_.splice(entries_.begin(), fresh);
        bytes_ += cost;
        return lookup::stored;
    }

    void drop_oldest() {
        bytes_ -= entries_.back().cost();
        by_key_.erase(entries_.back().key);
        entries_.pop_back();
    }

    void tell(lookup what) const {
        if (heard_) {
            heard_(what, {entries_.size(), bytes_, limit_});
        }
    }

    const size_t limit_;
    const listener heard_;
    std::mutex mutex_;
    entries entries_;
    std::unordered_map<std::string_view, entries::iterator> by_key_; // views into the keys of entries_
    size_t bytes_ = 0;
};

// A line for a log. People and programs count "JEV_IMAGE_CACHE hit" and "JEV_IMAGE_CACHE miss".
inline std::string log_line(lookup what, const cache_use & use) {
    const char * words = what == lookup::hit       ? "hit"
                         : what == lookup::stored    ? "miss"
                         : what == lookup::too_large ? "miss (larger than the limit, not kept)"
                         : what == lookup::no_memory ? "miss (no memory to keep it)"
                                                     : "miss (the encoder failed)";
    return std::string("JEV_IMAGE_CACHE ") + words + ", " + std::to_string(use.entries) + " entries in " +
           std::to_string(use.bytes) + " of " + std::to_string(use.limit) + " bytes\n";
}

} // namespace jev
