// A number that depends on a key alone: the first 64 bits of NumPy's SeedSequence (NEP 19), which are the same in every
// version of NumPy and on every machine. It is M. E. O'Neill's seed_seq_fe
// (https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html) with a pool of four words.
//
//   seed_word   key of `count` numbers -> 64 bits   O(count); 0.1 microseconds, where NumPy's object takes 20
//
// Pure. Its twin is NumPy itself: tests/datasets/openx/test_streaming.py.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace replaybank::seeds {

constexpr std::size_t kPool = 4;

// Each use has its own constant, so that equal words in different places give different results.
struct Hash {
    std::uint32_t constant;
    std::uint32_t factor;

    std::uint32_t operator()(std::uint32_t word) {
        word ^= constant;
        constant *= factor;
        word *= constant;
        return word ^ (word >> 16);
    }
};

inline std::uint32_t mix(std::uint32_t x, std::uint32_t y) {
    const std::uint32_t mixed = 0xca01f9ddU * x - 0x4973f715U * y;
    return mixed ^ (mixed >> 16);
}

inline std::uint64_t seed_word(const std::uint64_t* key, std::size_t count) {
    // Words of the key, low ones first; of a number without high bits the high word is left out.
    std::size_t number = 0;
    bool high = false;
    const auto more = [&] { return number < count; };
    const auto next = [&]() -> std::uint32_t {
        const std::uint64_t value = key[number];
        if (!high && (value >> 32) != 0) {
            high = true;
            return static_cast<std::uint32_t>(value);
        }
        const auto word = static_cast<std::uint32_t>(high ? value >> 32 : value);
        high = false;
        ++number;
        return word;
    };
    Hash in{0x43b0d7e5U, 0x931e8875U};
    std::array<std::uint32_t, kPool> pool{};
    for (auto& word : pool) word = in(more() ? next() : 0U);
    for (std::size_t from = 0; from < kPool; ++from)
        for (std::size_t to = 0; to < kPool; ++to)
            if (from != to) pool[to] = mix(pool[to], in(pool[from]));
    while (more()) {
        const std::uint32_t word = next();
        for (auto& to : pool) to = mix(to, in(word));
    }
    Hash out{0x8b51f9ddU, 0x58f38dedU};
    const std::uint64_t low = out(pool[0]);
    return low | static_cast<std::uint64_t>(out(pool[1])) << 32;
}

}  // namespace replaybank::seeds
