// Frames as decoders give them, a pixel's channels side by side, as planes: one channel behind the other.
//
//   split_channels     frames [n, pixels, channels] -> out[at + k] and after[after_at + k]    O(bytes), once through
//   scatter_channels   the same, each frame to any number of places
//
// Pure, allocate nothing; they check every number that says where something goes, and write nothing where one is wrong.
// Follow the level of sum_tree.hpp (REPLAYBANK_SIMD in the environment) for three channels of a byte: 32 pixels at a
// time by shuffles within lanes of 16 bytes from AVX2 on, 64 by permutations of bytes where AVX-512 has those (VBMI).
// A block of pixels is gone through once for each plane and each place, while it lies in the first cache: results then
// run in one stream each, which is what memory takes best. Where `pass` says so, they pass by the caches (and the lines
// that they overwrite are not read first): for frames that would only push the decoder's own memory out.
// Their twin is NumPy's transpose: tests/storages/test_channels.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sum_tree.hpp"

namespace replaybank::channels {

using i64 = std::int64_t;
using u8 = std::uint8_t;

constexpr i64 kBlock = 1024;  // pixels: their 3 KiB stay in any first cache
constexpr i64 kLine = 64;

// What all frames of a call have in common.
struct Shape {
    i64 pixels, channels, item;  // bytes of an item
    bool swapped;                // the first and the third channel are exchanged
    bool pass;                   // by the caches

    i64 bytes() const { return pixels * channels * item; }
    i64 plane(i64 channel) const {
        return swapped && channels >= 3 && (channel == 0 || channel == 2) ? 2 - channel : channel;
    }
};

// Room for `count` frames; none at nullptr.
struct Room {
    u8* at;
    i64 count;

    bool has(i64 k) const { return k >= 0 && k < count; }
};

inline bool overlap(const u8* a, i64 size, const u8* b, i64 other) { return a < b + other && b < a + size; }

inline bool apart(const Shape& shape, const u8* frames, i64 n, const Room& out, const Room& after) {
    const i64 bytes = shape.bytes();
    return !overlap(frames, n * bytes, out.at, out.count * bytes) &&
           !overlap(frames, n * bytes, after.at, after.count * bytes) &&
           !overlap(out.at, out.count * bytes, after.at, after.count * bytes);
}

// Pixels [from, to) of three channels. Compilers take three strides in one loop apart, where the CPU has that.
inline void split_portable(const u8* in, i64 from, i64 to, u8* red, u8* green, u8* blue) {
    for (i64 i = from; i < to; ++i) {
        red[i] = in[3 * i];
        green[i] = in[3 * i + 1];
        blue[i] = in[3 * i + 2];
    }
}

#ifdef REPLAYBANK_X86
inline i64 to_line(const u8* at) { return -reinterpret_cast<std::uintptr_t>(at) & (kLine - 1); }

inline void plane_portable(const u8* in, i64 from, i64 to, i64 channel, u8* out) {
    for (i64 i = from; i < to; ++i) out[i] = in[3 * i + channel];
}

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

// One channel of pixels [from, to) of a frame.
__attribute__((target("avx2"))) inline void plane_avx2(const u8* in, i64 from, i64 to, i64 channel, u8* out,
                                                       bool pass) {
    __m256i places[3];
    for (int v = 0; v < 3; ++v)
        places[v] =
            _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kPlaces.at[channel][v])));
    i64 i = from;
    if (pass) {
        i = std::min(to, from + to_line(out + from));
        plane_portable(in, from, i, channel, out);
    }
    for (; i + 32 <= to; i += 32) {
        const auto* bytes = reinterpret_cast<const __m128i*>(in + 3 * i);
        __m256i part[3];  // the low lane has pixels 0 to 15, the high one 16 to 31
        for (int v = 0; v < 3; ++v)
            part[v] = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(bytes + v)),
                                                                  _mm_loadu_si128(bytes + 3 + v), 1),
                                          places[v]);
        const __m256i plane = _mm256_or_si256(_mm256_or_si256(part[0], part[1]), part[2]);
        auto* to_here = reinterpret_cast<__m256i*>(out + i);
        if (pass)
            _mm256_stream_si256(to_here, plane);
        else
            _mm256_storeu_si256(to_here, plane);
    }
    plane_portable(in, i, to, channel, out);
}

// Where byte 3i + channel of 192 lies, for the 64 results i: in the first two vectors, or (`late`) in the third.
struct WidePlaces {
    alignas(64) u8 early[3][64];
    alignas(64) u8 last[3][64];
    std::uint64_t late[3];
    constexpr WidePlaces() : early(), last(), late() {
        for (int channel = 0; channel < 3; ++channel)
            for (int i = 0; i < 64; ++i) {
                const int byte = 3 * i + channel;
                if (byte < 128) {
                    early[channel][i] = static_cast<u8>(byte);
                } else {
                    last[channel][i] = static_cast<u8>(byte - 128);
                    late[channel] |= std::uint64_t{1} << i;
                }
            }
    }
};
inline constexpr WidePlaces kWidePlaces{};

inline bool has_vbmi() {
    static const bool has = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");
    return has;
}

#define REPLAYBANK_VBMI __attribute__((target("avx512f,avx512bw,avx512vbmi")))

// Bits 0 to n - 1; all from 64 on, none up to 0.
inline std::uint64_t first_bits(i64 n) {
    return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << std::max<i64>(n, 0)) - 1;
}

struct Picks {
    __m512i early, last;
    __mmask64 late;
};

REPLAYBANK_VBMI inline __m512i pick(const Picks& picks, __m512i a, __m512i b, __m512i c) {
    return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(a, picks.early, b), picks.late, picks.last, c);
}

// `count` results, 64 or fewer; no other byte is read or written.
REPLAYBANK_VBMI inline void some_vbmi(const Picks& picks, const u8* bytes, i64 count, u8* out) {
    const __m512i a = _mm512_maskz_loadu_epi8(first_bits(3 * count), bytes);
    const __m512i b = _mm512_maskz_loadu_epi8(first_bits(3 * count - 64), bytes + 64);
    const __m512i c = _mm512_maskz_loadu_epi8(first_bits(3 * count - 128), bytes + 128);
    _mm512_mask_storeu_epi8(out, first_bits(count), pick(picks, a, b, c));
}

REPLAYBANK_VBMI inline void plane_vbmi(const u8* in, i64 from, i64 to, i64 channel, u8* out, bool pass) {
    const Picks picks{_mm512_load_si512(kWidePlaces.early[channel]), _mm512_load_si512(kWidePlaces.last[channel]),
                      kWidePlaces.late[channel]};
    i64 i = std::min(to, from + to_line(out + from));
    if (i > from) some_vbmi(picks, in + 3 * from, i - from, out + from);
    for (; i + 64 <= to; i += 64) {
        const u8* bytes = in + 3 * i;
        const __m512i plane = pick(picks, _mm512_loadu_si512(bytes), _mm512_loadu_si512(bytes + 64),
                                   _mm512_loadu_si512(bytes + 128));
        if (pass)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i), plane);
        else
            _mm512_store_si512(out + i, plane);
    }
    if (i < to) some_vbmi(picks, in + 3 * i, to - i, out + i);
}
#undef REPLAYBANK_VBMI
#endif

// Three channels of a byte, to one place or two.
inline void split_colours(const Shape& shape, const u8* in, u8* out, u8* after) {
    const i64 pixels = shape.pixels;
    u8* const both[2] = {out, after};
    for (i64 start = 0; start < pixels; start += kBlock) {
        const i64 stop = std::min(start + kBlock, pixels);
#ifdef REPLAYBANK_X86
        const int level = weights::simd();
        if (level >= 2) {
            const auto plane = level == 5 && has_vbmi() ? plane_vbmi : plane_avx2;
            for (i64 channel = 0; channel < 3; ++channel)
                for (u8* place : both) {
                    if (!place) continue;
                    u8* const to = place + shape.plane(channel) * pixels;
                    // A block ends where a line does: the rest of that goes with the next block.
                    const auto edge = [to, pixels](i64 at) {
                        return at == 0 || at == pixels ? at : at - (kLine - to_line(to + at)) % kLine;
                    };
                    plane(in, edge(start), edge(stop), channel, to, shape.pass);
                }
            continue;
        }
#endif
        u8* planes[3];
        for (i64 channel = 0; channel < 3; ++channel) planes[channel] = out + shape.plane(channel) * pixels;
        split_portable(in, start, stop, planes[0], planes[1], planes[2]);
        if (!after) continue;
        for (const u8* plane : planes)
            std::memcpy(after + (plane - out) + start, plane + start, static_cast<std::size_t>(stop - start));
    }
}

// Any other: `kItem` bytes an item, or as many as the shape says.
template <i64 kItem>
void split_items(const Shape& shape, const u8* in, u8* out) {
    const i64 item = kItem ? kItem : shape.item;
    for (i64 channel = 0; channel < shape.channels; ++channel) {
        u8* plane = out + shape.plane(channel) * shape.pixels * item;
        const u8* from = in + channel * item;
        for (i64 i = 0; i < shape.pixels; ++i, from += shape.channels * item, plane += item)
            std::memcpy(plane, from, static_cast<std::size_t>(item));
    }
}

// One frame to one place, or to two.
inline void split_frame(const Shape& shape, const u8* in, u8* out, u8* after) {
    if (shape.channels == 3 && shape.item == 1) return split_colours(shape, in, out, after);
    const auto bytes = static_cast<std::size_t>(shape.bytes());
    if (shape.channels == 1)
        std::memcpy(out, in, bytes);
    else if (shape.item == 1)
        split_items<1>(shape, in, out);
    else if (shape.item == 2)
        split_items<2>(shape, in, out);
    else if (shape.item == 4)
        split_items<4>(shape, in, out);
    else
        split_items<0>(shape, in, out);
    if (after) std::memcpy(after, out, bytes);
}

// What went by the caches is seen by whoever is told that this has returned.
inline void settle(const Shape& shape) {
#ifdef REPLAYBANK_X86
    if (shape.pass) _mm_sfence();
#else
    static_cast<void>(shape);
#endif
}

// Frame k goes to out[at + k] and to after[after_at + k], as far as there are such. False, and nothing is written,
// where frames and results overlap.
inline bool split_channels(const Shape& shape, const u8* frames, i64 n, Room out, i64 at, Room after, i64 after_at) {
    if (!apart(shape, frames, n, out, after)) return false;
    const i64 bytes = shape.bytes();
    for (i64 k = 0; k < n && bytes; ++k) {
        u8* one = out.has(at + k) ? out.at + (at + k) * bytes : nullptr;
        u8* other = after.has(after_at + k) ? after.at + (after_at + k) * bytes : nullptr;
        if (one || other) split_frame(shape, frames + k * bytes, one ? one : other, one ? other : nullptr);
    }
    settle(shape);
    return true;
}

// Frame k goes to places[ends[k]] and on, before places[ends[k + 1]]: places of `out`, and behind them of `after`.
// There are n + 1 ends. False, and nothing is written, where a place is none, or frames and results overlap.
inline bool scatter_channels(const Shape& shape, const u8* frames, i64 n, const i64* ends, const i64* places,
                             i64 place_count, Room out, Room after) {
    bool good = apart(shape, frames, n, out, after) && ends[0] >= 0 && ends[n] <= place_count;
    for (i64 k = 0; good && k < n; ++k) good = ends[k] <= ends[k + 1];
    for (i64 i = ends[0]; good && i < ends[n]; ++i) good = places[i] >= 0 && places[i] < out.count + after.count;
    if (!good) return false;
    const i64 bytes = shape.bytes();
    const auto place = [&](i64 i) {
        return places[i] < out.count ? out.at + places[i] * bytes : after.at + (places[i] - out.count) * bytes;
    };
    for (i64 k = 0; k < n && bytes; ++k)
        for (i64 i = ends[k]; i < ends[k + 1]; i += 2)
            split_frame(shape, frames + k * bytes, place(i), i + 1 < ends[k + 1] ? place(i + 1) : nullptr);
    settle(shape);
    return true;
}

}  // namespace replaybank::channels
