// The weight tree: weights of N items, and items drawn in proportion to them. Pure functions over one block of
// memory that Python owns.
//
// Layout. Level 0 are the leaves, in index order, of type T (float32 or float64); a node of level l + 1 stands for
// 16 neighbours of level l; the topmost level has at most 16 nodes. The leaves come first, padded with zeros to a
// multiple of 16. A level above is made of blocks of 16 siblings: 16 sums (float64), 16 minima, 16 maxima (T), so
// that what an update touches lies side by side. `tree_bytes` bytes in all: 5.07 a leaf in float32, 9.6 in float64.
//
// A minimum is that of the positive leaves, 0 if there are none: memory of zeros is the tree without weights.
// Leaves are finite and >= 0; Python sees to that for what it writes itself.
//
// Sums never drift: where a leaf changes, its ancestors are added up again from their children, always in the order
// that sum_tree_simd.hpp gives, so that every instruction set gives the same bits. The set is chosen once, by what
// the CPU has; REPLAYBANK_SIMD=portable (or avx2) in the environment forces another.
//
// Nothing here throws on bad input or keeps state. A bad position is reported before anything is written.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define REPLAYBANK_X86 1
#include <immintrin.h>
#endif

namespace replaybank::weights {

using i64 = std::int64_t;
using u64 = std::uint64_t;
using u8 = std::uint8_t;

constexpr i64 kFan = 16;
constexpr int kMaxDepth = 15;  // 16^15 nodes above 2^63 leaves
constexpr i64 kScanned = 24;    // float64 a scan takes: a cache line that ends with 0, then 16 sums
constexpr i64 kAhead = 8;      // nodes between a prefetch and its use: about a cache miss of work

inline int lowest(unsigned bits) { return __builtin_ctz(bits); }
inline int highest(unsigned bits) { return 31 - __builtin_clz(bits); }

template <class T>
struct Tree {
    static constexpr i64 kBlock = 16 * static_cast<i64>(sizeof(double) + 2 * sizeof(T));

    u8* level[kMaxDepth + 1];
    i64 capacity, bytes;
    int depth;  // number of levels above the leaves

    Tree(void* base, i64 n) : level{}, capacity(n), bytes(0), depth(0) {
        i64 nodes = (n + kFan - 1) / kFan;
        level[0] = static_cast<u8*>(base);
        bytes = (nodes * kFan * static_cast<i64>(sizeof(T)) + 63) / 64 * 64;
        do {
            level[++depth] = level[0] + bytes;
            const i64 blocks = (nodes + kFan - 1) / kFan;
            bytes += blocks * kBlock;
            nodes = blocks;
        } while (nodes > 1);
    }

    T* leaves() const { return reinterpret_cast<T*>(level[0]); }
    u8* block(int l, i64 node) const { return level[l] + node / kFan * kBlock; }
    double* sum(int l, i64 node) const { return reinterpret_cast<double*>(block(l, node)) + node % kFan; }
    T* minimum(int l, i64 node) const { return reinterpret_cast<T*>(block(l, node) + 128) + node % kFan; }
    T* maximum(int l, i64 node) const { return minimum(l, node) + kFan; }

    // Asks for what a descent, or a recomputation, reads of the 16 siblings that begin with `node`.
    void prefetch_sums(int l, i64 node) const {
        const u8* at = l ? block(l, node) : reinterpret_cast<const u8*>(leaves() + node);
        __builtin_prefetch(at, 0, 2);
        if (l || sizeof(T) == 8) __builtin_prefetch(at + 64, 0, 2);
    }
    void prefetch(int l, i64 node) const {
        prefetch_sums(l, node);
        if (l) {
            __builtin_prefetch(block(l, node) + 128, 0, 2), __builtin_prefetch(block(l, node) + 192, 0, 2);
        }
    }
};

// Sums up to each child, made once for all draws of a call, for the levels (those on top) where that pays; or null.
struct Scans {
    const double* level[kMaxDepth + 1];
};

// What an instruction set provides.
template <class T>
struct Kernels {
    void (*refresh)(const Tree<T>&, int level, const i64* nodes, i64 count);  // recompute nodes of a level
    void (*refresh_run)(const Tree<T>&, int level, i64 first, i64 last);
    void (*scan_blocks)(const Tree<T>&, int level, i64 blocks, double* up_to);
    void (*descend)(const Tree<T>&, const Scans&, double* masses, i64* nodes, i64 count);  // masses are used up
    void (*top)(const Tree<T>&, double& sum, T& minimum, T& maximum);
    void (*power)(double* x, i64 count, double exponent);
};

namespace portable {
#define REPLAYBANK_SIMD 0
#define REPLAYBANK_TARGET
#include "sum_tree_simd.hpp"
#undef REPLAYBANK_SIMD
#undef REPLAYBANK_TARGET
}  // namespace portable

#ifdef REPLAYBANK_X86
namespace avx2 {
#define REPLAYBANK_SIMD 2
#define REPLAYBANK_TARGET __attribute__((target("avx2")))
#include "sum_tree_simd.hpp"
#undef REPLAYBANK_SIMD
#undef REPLAYBANK_TARGET
}  // namespace avx2

namespace avx512 {
#define REPLAYBANK_SIMD 5
#define REPLAYBANK_TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx2")))
#include "sum_tree_simd.hpp"
#undef REPLAYBANK_SIMD
#undef REPLAYBANK_TARGET
}  // namespace avx512
#endif

// 0 portable, 2 AVX2, 5 AVX-512: the best that the CPU has and REPLAYBANK_SIMD allows.
inline int chosen_simd() {
    int best = 0;
#ifdef REPLAYBANK_X86
    const char* wish = std::getenv("REPLAYBANK_SIMD");
    if (wish && std::strcmp(wish, "portable") == 0) return 0;
    if (__builtin_cpu_supports("avx2")) best = 2;
    if (wish && std::strcmp(wish, "avx2") == 0) return best;
    if (best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        best = 5;
#endif
    return best;
}

inline int& simd() {
    static int set = chosen_simd();
    return set;
}

template <class T>
const Kernels<T>& kernels() {
#ifdef REPLAYBANK_X86
    if (simd() == 5) return avx512::kernels<T>();
    if (simd() == 2) return avx2::kernels<T>();
#endif
    return portable::kernels<T>();
}

// The ancestors of leaves [first, last]. O((last - first) / 16 + levels).
template <class T>
void refresh_above_run(const Tree<T>& tree, i64 first, i64 last) {
    for (int level = 1; level <= tree.depth; ++level) {
        first /= kFan, last /= kFan;
        kernels<T>().refresh_run(tree, level, first, last);
    }
}

// The ancestors of some leaves; negative ones are skipped. `items` is used up. O(count * levels).
template <class T>
void refresh_above(const Tree<T>& tree, i64* items, i64 count) {
    constexpr i64 kMarked = 1 << 16;  // nodes of a level that are told apart by a bitmap of 8 KiB
    u64 marks[kMarked / 64];
    i64 nodes = tree.capacity;
    for (int level = 1; level <= tree.depth; ++level) {
        nodes = (nodes + kFan - 1) / kFan;
        i64 kept = 0;
        if (nodes <= kMarked && nodes / 8 <= count) {
            // Many items have few ancestors: each once, in order.
            const i64 words = (nodes + 63) / 64;
            std::memset(marks, 0, static_cast<std::size_t>(words) * 8);
            for (i64 k = 0; k < count; ++k)
                if (items[k] >= 0) marks[items[k] / kFan / 64] |= u64{1} << (items[k] / kFan % 64);
            for (i64 word = 0; word < words; ++word)
                for (u64 rest = marks[word]; rest; rest &= rest - 1)
                    items[kept++] = word * 64 + __builtin_ctzll(rest);
        } else {
            i64 previous = -1;
            for (i64 k = 0; k < count; ++k) {
                const i64 node = items[k] < 0 ? -1 : items[k] / kFan;
                if (node >= 0 && node != previous) items[kept++] = node;
                previous = node;
            }
        }
        count = kept;
        kernels<T>().refresh(tree, level, items, count);
    }
}

// What `update` says: all good, or what is wrong and where.
struct Verdict {
    enum Kind : i64 { kGood, kIndex, kWeight, kOverflow } kind;
    i64 position;
    double largest;  // of the values given and not skipped, -1 if there are none
};

// Leaves become (value + eps)^alpha; of repeated items the last wins. Nothing is written if an item is not in
// [0, limit), with limit <= capacity, or a value is negative, infinite or NaN, or its weight does not fit T. Items of -1 are skipped,
// whatever their value, if `skip`; so are those whose `stale` byte (may be null) is not 0. O(count * levels).
//   items int64, values V, one every `step` (0: one for all), stale uint8: [count] each.
template <class T, class V>
Verdict update(const Tree<T>& tree, i64 limit, const i64* items, i64 count, const V* values, i64 step, double eps,
               double alpha, bool skip, const u8* stale) {
    if (count <= 0) return {Verdict::kGood, 0, -1.0};
    if (limit > tree.capacity) limit = tree.capacity;
    const auto n = static_cast<std::size_t>(count);
    const std::unique_ptr<double[]> weights(new double[n]);
    const std::unique_ptr<i64[]> kept(new i64[n]);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    double largest = -1.0;
    for (i64 k = 0; k < count; ++k) {
        const i64 item = items[k];
        const double value = static_cast<double>(values[k * step]);
        if (skip && item == -1) {
            kept[static_cast<std::size_t>(k)] = -1, weights[static_cast<std::size_t>(k)] = 1.0;
            continue;
        }
        if (item < 0 || item >= limit) return {Verdict::kIndex, k, 0.0};
        if (!(value >= 0.0 && value < kInfinity)) return {Verdict::kWeight, k, 0.0};
        const bool old = stale && stale[k];
        kept[static_cast<std::size_t>(k)] = old ? -1 : item;
        if (!old && value > largest) largest = value;
        weights[static_cast<std::size_t>(k)] = value + eps;
        __builtin_prefetch(tree.leaves() + item, 1, 2);
        tree.prefetch(1, item / kFan / kFan * kFan);
    }
    if (sizeof(T) == 8) {
        for (std::size_t k = 0; k < n; ++k)
            if (alpha != 1.0) weights[k] = std::pow(weights[k], alpha);
    } else {
        kernels<T>().power(weights.get(), count, alpha);
    }
    for (i64 k = 0; k < count; ++k)
        if (!(static_cast<T>(weights[static_cast<std::size_t>(k)]) < std::numeric_limits<T>::infinity()) &&
            kept[static_cast<std::size_t>(k)] >= 0)
            return {Verdict::kOverflow, k, 0.0};
    for (std::size_t k = 0; k < n; ++k)
        if (kept[k] >= 0) tree.leaves()[kept[k]] = static_cast<T>(weights[k]);
    refresh_above(tree, kept.get(), count);
    return {Verdict::kGood, 0, largest};
}

// Leaves [first, first + count) become `weight`. False, and nothing written, if they are not there or the weight
// is no weight. O(count / 16 + levels).
template <class T>
bool fill(const Tree<T>& tree, i64 first, i64 count, double weight) {
    const T value = static_cast<T>(weight);
    if (first < 0 || count < 0 || first > tree.capacity - count) return false;
    if (!(weight >= 0.0) || !(value < std::numeric_limits<T>::infinity())) return false;
    if (count == 0) return true;
    for (i64 k = first; k < first + count; ++k) tree.leaves()[k] = value;
    refresh_above_run(tree, first, first + count - 1);
    return true;
}

// Leaves [first, first + count) become those of `source` where `mask` [capacity] is set, 0 elsewhere. The same.
template <class T>
bool select_run(const Tree<T>& tree, const Tree<T>& source, const u8* mask, i64 first, i64 count) {
    if (first < 0 || count < 0 || first > tree.capacity - count) return false;
    if (count == 0) return true;
    for (i64 k = first; k < first + count; ++k) tree.leaves()[k] = mask[k] ? source.leaves()[k] : T{0};
    refresh_above_run(tree, first, first + count - 1);
    return true;
}

// The same for some leaves; negative items are skipped. False, and nothing written, if one is too large.
template <class T>
bool select(const Tree<T>& tree, const Tree<T>& source, const u8* mask, const i64* items, i64 count) {
    if (count <= 0) return true;
    const std::unique_ptr<i64[]> kept(new i64[static_cast<std::size_t>(count)]);
    for (i64 k = 0; k < count; ++k) {
        if (items[k] >= tree.capacity) return false;
        kept[static_cast<std::size_t>(k)] = items[k];
    }
    for (i64 k = 0; k < count; ++k)
        if (items[k] >= 0) tree.leaves()[items[k]] = mask[items[k]] ? source.leaves()[items[k]] : T{0};
    refresh_above(tree, kept.get(), count);
    return true;
}

// Whether all of n numbers are `value`: mostly, stamps are as the log still has it.
inline bool all_are(const i64* numbers, i64 n, i64 value) {
    i64 others = 0;
    for (i64 k = 0; k < n; ++k) others |= numbers[k] ^ value;
    return others == 0;
}

// What is drawn beside the items.
template <class T>
struct Drawn {
    i64* items;    // [count]
    T* weights;    // [count], or null: of the items
    T* importance; // [count], or null: (weight / smallest positive weight)^-beta
    i64* stamps;   // [count], or null: `stamp`
    double beta;
    i64 stamp;
};

// Items on which masses fall: item k takes the masses from the sum of the weights before it on. `values` are the
// masses, or, if `shares`, shares of the total in [0, 1), the k-th being moved to the k-th of `count` equal parts of
// it if `stratified`. Masses out of range fall on the first or last item with weight. False, and nothing written, if
// there is no weight at all. O(count * levels), cache misses overlapped.
template <class T>
bool draw(const Tree<T>& tree, const double* values, i64 count, bool shares, bool stratified, const Drawn<T>& out) {
    constexpr i64 kChunk = 128, kReady = 1 + 16 + 256;
    alignas(64) double up_to[kReady * kScanned];
    double masses[kChunk], sum;
    T minimum, maximum;
    const Kernels<T>& native = kernels<T>();
    native.top(tree, sum, minimum, maximum);
    if (!(sum > 0.0)) return count <= 0;
    Scans ready = {};
    i64 used = 0;
    for (int level = tree.depth; level > 0; --level) {
        i64 blocks = tree.capacity;
        for (int l = 0; l <= level; ++l) blocks = (blocks + kFan - 1) / kFan;
        if (used + blocks > kReady || blocks * 4 > count) break;
        native.scan_blocks(tree, level, blocks, up_to + used * kScanned + 8);
        ready.level[level] = up_to + used * kScanned + 8;
        used += blocks;
    }
    for (i64 start = 0; start < count; start += kChunk) {
        const i64 n = count - start < kChunk ? count - start : kChunk;
        for (i64 k = 0; k < n; ++k) {
            const double value = values[start + k];
            const double part = stratified ? (static_cast<double>(start + k) + value) / static_cast<double>(count) : value;
            masses[k] = shares ? part * sum : value;
        }
        native.descend(tree, ready, masses, out.items + start, n);
        for (i64 k = 0; k < n && out.weights; ++k) out.weights[start + k] = tree.leaves()[out.items[start + k]];
        for (i64 k = 0; k < n && out.stamps; ++k) out.stamps[start + k] = out.stamp;
        if (!out.importance) continue;
        for (i64 k = 0; k < n; ++k)
            masses[k] = static_cast<double>(tree.leaves()[out.items[start + k]]) / static_cast<double>(minimum);
        if (sizeof(T) == 8) {
            for (i64 k = 0; k < n; ++k) masses[k] = std::pow(masses[k], -out.beta);
        } else {
            native.power(masses, n, -out.beta);
        }
        for (i64 k = 0; k < n; ++k) out.importance[start + k] = static_cast<T>(masses[k]);
    }
    return true;
}

}  // namespace replaybank::weights
