// Colour frames as decoders give them, a pixel's three bytes side by side, as planes: one behind the other.
//
//   split_channels   frames [n, pixels, 3] -> out [n, 3, pixels]   O(bytes), once through each
//
// Pure, allocates nothing. Follows the level of sum_tree.hpp (REPLAYBANK_SIMD in the environment): from AVX2 on,
// 32 pixels are taken apart at a time by shuffles within lanes of 16 bytes. Its twin is NumPy's transpose:
// tests/datasets/openx/test_channels.py.

#pragma once

#include <cstdint>

#include "sum_tree.hpp"

namespace replaybank::channels {

using i64 = std::int64_t;
using u8 = std::uint8_t;

inline void split_portable(const u8* in, i64 first, i64 pixels, u8* out) {
    u8* const green = out + pixels;
    u8* const blue = green + pixels;
    for (i64 i = first; i < pixels; ++i) {
        out[i] = in[3 * i];
        green[i] = in[3 * i + 1];
        blue[i] = in[3 * i + 2];
    }
}

#ifdef REPLAYBANK_X86
// Where byte 3i + channel of 48 lies, for the 16 results i: in one of three vectors; -1 elsewhere gives zero.
struct Places {
    alignas(16) signed char at[3][3][16];
    constexpr Places() : at() {
        for (int channel = 0; channel < 3; ++channel)
            for (int vector = 0; vector < 3; ++vector)
                for (int i = 0; i < 16; ++i) {
                    const int byte = 3 * i + channel - 16 * vector;
                    at[channel][vector][i] = static_cast<signed char>(byte >= 0 && byte < 16 ? byte : -1);
                }
    }
};
inline constexpr Places kPlaces{};

// The number of pixels that are done.
__attribute__((target("avx2"))) inline i64 split_avx2(const u8* in, i64 pixels, u8* out) {
    __m256i places[3][3];
    for (int c = 0; c < 3; ++c)
        for (int v = 0; v < 3; ++v)
            places[c][v] = _mm256_broadcastsi128_si256(
                _mm_load_si128(reinterpret_cast<const __m128i*>(kPlaces.at[c][v])));
    i64 done = 0;
    for (; done + 32 <= pixels; done += 32, in += 96) {
        const auto* from = reinterpret_cast<const __m128i*>(in);
        __m256i part[3];  // the low lane has pixels 0 to 15, the high one 16 to 31
        for (int v = 0; v < 3; ++v)
            part[v] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(from + v)),
                                              _mm_loadu_si128(from + 3 + v), 1);
        for (int c = 0; c < 3; ++c) {
            const __m256i both = _mm256_or_si256(_mm256_shuffle_epi8(part[0], places[c][0]),
                                                 _mm256_shuffle_epi8(part[1], places[c][1]));
            const __m256i plane = _mm256_or_si256(both, _mm256_shuffle_epi8(part[2], places[c][2]));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + c * pixels + done), plane);
        }
    }
    return done;
}
#endif

inline void split_channels(const u8* frames, i64 n, i64 pixels, u8* out) {
    for (i64 k = 0; k < n; ++k, frames += 3 * pixels, out += 3 * pixels) {
        i64 done = 0;
#ifdef REPLAYBANK_X86
        if (weights::simd() >= 2) done = split_avx2(frames, pixels, out);
#endif
        split_portable(frames, done, pixels, out);
    }
}

}  // namespace replaybank::channels
