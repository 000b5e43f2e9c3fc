// The arithmetic of one tree node, for one instruction set. Included once for each by sum_tree.hpp, which says
// what REPLAYBANK_SIMD (0 portable, 2 AVX2, 5 AVX-512) and REPLAYBANK_TARGET (the function attribute) are: no
// include guard, on purpose.
//
// All sets add in the same order, so that results are the same to the last bit: 8 numbers are scanned by
// doubling (x[j] += x[j - 1], then j - 2, then j - 4), 16 as two halves, the first's total added to the second's
// scan. The total of 16 is the last number of that scan. `-ffp-contract=off` keeps compilers from fusing.

#define REPLAYBANK_INLINE REPLAYBANK_TARGET inline __attribute__((always_inline))

// Eight float64.
struct Eight {
#if REPLAYBANK_SIMD == 5
    __m512d v;
#elif REPLAYBANK_SIMD == 2
    __m256d a, b;
#else
    double v[8];
#endif
};

#if REPLAYBANK_SIMD == 5

// Masked forms that keep every lane: the plain ones start from an undefined register, of which GCC 12 warns.
constexpr __mmask8 kAll = 0xff;

REPLAYBANK_INLINE void load(const double* x, Eight& e) { e.v = _mm512_loadu_pd(x); }
REPLAYBANK_INLINE void load(const float* x, Eight& e) { e.v = _mm512_maskz_cvtps_pd(kAll, _mm256_loadu_ps(x)); }
REPLAYBANK_INLINE void store(const Eight& e, double* x) { _mm512_storeu_pd(x, e.v); }
REPLAYBANK_INLINE void add(Eight& e, double x) { e.v = _mm512_add_pd(e.v, _mm512_set1_pd(x)); }
REPLAYBANK_INLINE unsigned above(const Eight& e, double x) {
    return _mm512_cmp_pd_mask(e.v, _mm512_set1_pd(x), _CMP_GT_OQ);
}
REPLAYBANK_INLINE void scan(Eight& e) {
    const __m512i v = _mm512_castpd_si512(e.v), none = _mm512_setzero_si512();
    const __m512d one = _mm512_add_pd(e.v, _mm512_castsi512_pd(_mm512_maskz_alignr_epi64(kAll, v, none, 7)));
    const __m512d two =
        _mm512_add_pd(one, _mm512_castsi512_pd(_mm512_maskz_alignr_epi64(kAll, _mm512_castpd_si512(one), none, 6)));
    e.v = _mm512_add_pd(two, _mm512_castsi512_pd(_mm512_maskz_alignr_epi64(kAll, _mm512_castpd_si512(two), none, 4)));
}
REPLAYBANK_INLINE double total(const Eight& e) {
    const __m512d pairs = _mm512_add_pd(e.v, _mm512_maskz_permute_pd(kAll, e.v, 0x55));
    const __m512d fours = _mm512_add_pd(pairs, _mm512_maskz_permutex_pd(kAll, pairs, 0x4e));
    return _mm512_cvtsd_f64(_mm512_add_pd(fours, _mm512_maskz_shuffle_f64x2(kAll, fours, fours, 0x4e)));
}

#elif REPLAYBANK_SIMD == 2

REPLAYBANK_INLINE void load(const double* x, Eight& e) { e.a = _mm256_loadu_pd(x), e.b = _mm256_loadu_pd(x + 4); }
REPLAYBANK_INLINE void load(const float* x, Eight& e) {
    e.a = _mm256_cvtps_pd(_mm_loadu_ps(x)), e.b = _mm256_cvtps_pd(_mm_loadu_ps(x + 4));
}
REPLAYBANK_INLINE void store(const Eight& e, double* x) { _mm256_storeu_pd(x, e.a), _mm256_storeu_pd(x + 4, e.b); }
REPLAYBANK_INLINE void add(Eight& e, double x) {
    e.a = _mm256_add_pd(e.a, _mm256_set1_pd(x)), e.b = _mm256_add_pd(e.b, _mm256_set1_pd(x));
}
REPLAYBANK_INLINE unsigned above(const Eight& e, double x) {
    const __m256d level = _mm256_set1_pd(x);
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(e.a, level, _CMP_GT_OQ)) |
                                 _mm256_movemask_pd(_mm256_cmp_pd(e.b, level, _CMP_GT_OQ)) << 4);
}
REPLAYBANK_INLINE void scan(Eight& e) {
    const __m256d turned_a = _mm256_permute4x64_pd(e.a, 0x93), turned_b = _mm256_permute4x64_pd(e.b, 0x93);
    const __m256d a1 = _mm256_add_pd(e.a, _mm256_blend_pd(turned_a, _mm256_setzero_pd(), 1));
    const __m256d b1 = _mm256_add_pd(e.b, _mm256_blend_pd(turned_b, turned_a, 1));
    e.a = _mm256_add_pd(a1, _mm256_permute2f128_pd(a1, a1, 0x08));
    e.b = _mm256_add_pd(_mm256_add_pd(b1, _mm256_permute2f128_pd(a1, b1, 0x21)), e.a);
}
REPLAYBANK_INLINE double total(const Eight& e) {
    const __m256d a1 = _mm256_add_pd(e.a, _mm256_permute_pd(e.a, 5)), b1 = _mm256_add_pd(e.b, _mm256_permute_pd(e.b, 5));
    const __m256d a2 = _mm256_add_pd(a1, _mm256_permute2f128_pd(a1, a1, 1));
    const __m256d b2 = _mm256_add_pd(b1, _mm256_permute2f128_pd(b1, b1, 1));
    return _mm256_cvtsd_f64(_mm256_add_pd(a2, b2));
}

#else

template <class T>
REPLAYBANK_INLINE void load(const T* x, Eight& e) {
    for (int j = 0; j < 8; ++j) e.v[j] = static_cast<double>(x[j]);
}
REPLAYBANK_INLINE void store(const Eight& e, double* x) { std::memcpy(x, e.v, sizeof e.v); }
REPLAYBANK_INLINE void add(Eight& e, double x) {
    for (double& v : e.v) v += x;
}
REPLAYBANK_INLINE void scan(Eight& e) {
    double one[8], two[8];
    for (int j = 0; j < 8; ++j) one[j] = j < 1 ? e.v[j] : e.v[j] + e.v[j - 1];
    for (int j = 0; j < 8; ++j) two[j] = j < 2 ? one[j] : one[j] + one[j - 2];
    for (int j = 0; j < 8; ++j) e.v[j] = j < 4 ? two[j] : two[j] + two[j - 4];
}
REPLAYBANK_INLINE double total(const Eight& e) {
    return ((e.v[0] + e.v[1]) + (e.v[2] + e.v[3])) + ((e.v[4] + e.v[5]) + (e.v[6] + e.v[7]));
}

#endif

template <class T>
REPLAYBANK_INLINE double sum16(const T* x) {
    Eight low, high;
    load(x, low), load(x + 8, high);
    return total(low) + total(high);
}

// The smallest of 16 that is positive, 0 if none is, and the largest. The order of comparisons does not matter.
#if REPLAYBANK_SIMD

// What is left of eight candidates for the smallest (infinity: none) and eight for the largest.
REPLAYBANK_INLINE void fold(__m256 low, __m256 high, float& smallest, float& largest) {
    __m128 least = _mm_min_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1));
    least = _mm_min_ps(least, _mm_movehl_ps(least, least)), most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    least = _mm_min_ss(least, _mm_shuffle_ps(least, least, 1)), most = _mm_max_ss(most, _mm_shuffle_ps(most, most, 1));
    smallest = _mm_cvtss_f32(least), largest = _mm_cvtss_f32(most);
    if (!(smallest < std::numeric_limits<float>::infinity())) smallest = 0.0f;
}
REPLAYBANK_INLINE void extremes16(const float* x, float& smallest, float& largest) {
    const __m256 zero = _mm256_setzero_ps(), none = _mm256_set1_ps(std::numeric_limits<float>::infinity());
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    fold(_mm256_min_ps(_mm256_blendv_ps(none, a, _mm256_cmp_ps(a, zero, _CMP_GT_OQ)),
                       _mm256_blendv_ps(none, b, _mm256_cmp_ps(b, zero, _CMP_GT_OQ))),
         _mm256_max_ps(a, b), smallest, largest);
}
REPLAYBANK_INLINE void extremes16(const double* x, double& smallest, double& largest) {
    const __m256d zero = _mm256_setzero_pd(), none = _mm256_set1_pd(std::numeric_limits<double>::infinity());
    __m256d low = none, high = zero;
    for (int j = 0; j < 16; j += 4) {
        const __m256d v = _mm256_loadu_pd(x + j);
        low = _mm256_min_pd(low, _mm256_blendv_pd(none, v, _mm256_cmp_pd(v, zero, _CMP_GT_OQ)));
        high = _mm256_max_pd(high, v);
    }
    const __m128d least = _mm_min_pd(_mm256_castpd256_pd128(low), _mm256_extractf128_pd(low, 1));
    const __m128d most = _mm_max_pd(_mm256_castpd256_pd128(high), _mm256_extractf128_pd(high, 1));
    smallest = _mm_cvtsd_f64(_mm_min_sd(least, _mm_unpackhi_pd(least, least)));
    largest = _mm_cvtsd_f64(_mm_max_sd(most, _mm_unpackhi_pd(most, most)));
    if (!(smallest < std::numeric_limits<double>::infinity())) smallest = 0.0;
}

#else

template <class T>
REPLAYBANK_INLINE void extremes16(const T* x, T& smallest, T& largest) {
    T least = std::numeric_limits<T>::infinity(), most = x[0];
    for (int j = 0; j < 16; ++j) {
        least = x[j] > 0 && x[j] < least ? x[j] : least;
        most = x[j] > most ? x[j] : most;
    }
    smallest = least < std::numeric_limits<T>::infinity() ? least : T{0}, largest = most;
}

#endif

// Sums up to each of 16 numbers; up_to[-1] becomes 0.
template <class T>
REPLAYBANK_INLINE void scan16(const T* x, double* up_to) {
    Eight low, high;
    up_to[-1] = 0.0;
    load(x, low), load(x + 8, high);
    scan(low), scan(high);
    store(low, up_to);
    add(high, up_to[7]);
    store(high, up_to + 8);
}

// Which of 16 children a mass falls on: the first whose sum up to it exceeds the mass. `mass` becomes what is left of
// it there. A child without weight is never chosen while another has some: sums up to it may be off by a rounding
// then, and what is left over at the end goes to the last child with weight.
template <class T>
REPLAYBANK_INLINE int child16(const T* x, const double* up_to, double& mass) {
#if REPLAYBANK_SIMD
    Eight low, high;
    load(up_to, low), load(up_to + 8, high);
    const unsigned open = above(low, mass) | above(high, mass) << 8;
    int child = lowest(open | 1u << 15);
    const bool found = open != 0;
#else
    int child = 0;
    while (child < 15 && !(up_to[child] > mass)) ++child;
    const bool found = up_to[child] > mass;
#endif
    if (!found || !(x[child] > 0)) {
        int last = 15;
        for (child = -1; last > 0 && !(x[last] > 0); --last) {}
        while (++child < last && !(x[child] > 0 && up_to[child] > mass)) {}
    }
    mass -= up_to[child - 1];
    return child;
}

// Node `node` of level `level` from its children. O(1).
template <class T>
REPLAYBANK_INLINE void recompute(const Tree<T>& tree, int level, i64 node) {
    const i64 first = node * kFan;
    if (level == 1) {
        const T* leaves = tree.leaves() + first;
        *tree.sum(1, node) = sum16(leaves);
        extremes16(leaves, *tree.minimum(1, node), *tree.maximum(1, node));
    } else {
        *tree.sum(level, node) = sum16(tree.sum(level - 1, first));
        T unused;
        extremes16(tree.minimum(level - 1, first), *tree.minimum(level, node), unused);
        extremes16(tree.maximum(level - 1, first), unused, *tree.maximum(level, node));
    }
}

template <class T>
REPLAYBANK_TARGET void refresh(const Tree<T>& tree, int level, const i64* nodes, i64 count) {
    for (i64 k = 0; k < count; ++k) {
        if (k + kAhead < count) tree.prefetch(level - 1, nodes[k + kAhead] * kFan);
        recompute(tree, level, nodes[k]);
    }
}

template <class T>
REPLAYBANK_TARGET void refresh_run(const Tree<T>& tree, int level, i64 first, i64 last) {
    for (i64 node = first; node <= last; ++node) recompute(tree, level, node);
}

template <class T>
REPLAYBANK_TARGET void scan_blocks(const Tree<T>& tree, int level, i64 blocks, double* up_to) {
    for (i64 block = 0; block < blocks; ++block) scan16(tree.sum(level, block * kFan), up_to + block * kScanned);
}

template <class T>
REPLAYBANK_TARGET void descend(const Tree<T>& tree, const Scans& ready, double* masses, i64* nodes, i64 count) {
    for (i64 k = 0; k < count; ++k) nodes[k] = 0;
    for (int level = tree.depth; level > 0; --level) {
        const double* all = ready.level[level];
        for (i64 k = 0; k < count; ++k) {
            const i64 first = nodes[k] * kFan;
            const double* sums = tree.sum(level, first);
            if (all) {
                nodes[k] = first + child16(sums, all + nodes[k] * kScanned, masses[k]);
            } else {
                alignas(64) double up_to[kScanned];
                scan16(sums, up_to + 8);
                nodes[k] = first + child16(sums, up_to + 8, masses[k]);
            }
            tree.prefetch_sums(level - 1, nodes[k] * kFan);
        }
    }
    for (i64 k = 0; k < count; ++k) {
        const i64 first = nodes[k] * kFan;
        alignas(64) double up_to[kScanned];
        scan16(tree.leaves() + first, up_to + 8);
        nodes[k] = first + child16(tree.leaves() + first, up_to + 8, masses[k]);
    }
}

template <class T>
REPLAYBANK_TARGET void top(const Tree<T>& tree, double& sum, T& minimum, T& maximum) {
    sum = sum16(tree.sum(tree.depth, 0));
    T unused;
    extremes16(tree.minimum(tree.depth, 0), minimum, unused), extremes16(tree.maximum(tree.depth, 0), unused, maximum);
}

// x^exponent for x that are 0 or normal, good to 1e-12: more than a float32 shows. 1 gives 1 exactly. O(count).
REPLAYBANK_TARGET inline void power(double* x, i64 count, double exponent) {
    if (exponent == 1.0) return;
    constexpr double kTiny = std::numeric_limits<double>::min(), kRound = 6755399441055744.0;  // 1.5 * 2^52
    constexpr double kShifted = 4503599627370496.0;                                          // 2^52
    constexpr u64 kRootHalf = 0x3fe6a09e667f3bcdu;
    const double zero = exponent > 0.0 ? 0.0 : exponent < 0.0 ? std::numeric_limits<double>::infinity() : 1.0;
    for (i64 k = 0; k < count; ++k) {
        const double base = x[k] < kTiny ? kTiny : x[k];
        u64 bits, raised;
        std::memcpy(&bits, &base, 8);
        // base = 2^e * m with m in [sqrt(1/2), sqrt(2)); e + 1024 > 0 becomes a float64 through its bits.
        const u64 biased = (bits - kRootHalf + (u64{1024} << 52)) >> 52;
        bits -= (biased << 52) - (u64{1024} << 52);
        const u64 exponent_bits = biased | 0x4330000000000000u;
        double m, e;
        std::memcpy(&m, &bits, 8);
        std::memcpy(&e, &exponent_bits, 8);
        e = e - kShifted - 1024.0;
        // log2(m) by the series of atanh, then 2^y by that of exp.
        const double f = (m - 1.0) / (m + 1.0), s = f * f;
        const double series =
            1.0 + s * (1.0 / 3 + s * (1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11 + s * (1.0 / 13 + s / 15))))));
        double y = exponent * (e + 2.8853900817779268 * f * series);
        y = y < -1022.0 ? -1022.0 : y > 1023.0 ? 1023.0 : y;
        const double rounded = y + kRound;
        const double r = (y - (rounded - kRound)) * 0.69314718055994531;
        const double low = 1.0 + r * (1.0 + r * (1.0 / 2 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120)))));
        const double r3 = r * r * r;
        const double high = r3 * r3 * (1.0 / 720 + r * (1.0 / 5040 + r * (1.0 / 40320 + r * (1.0 / 362880 + r / 3628800))));
        const double mantissa = low + high;
        u64 scale;
        std::memcpy(&scale, &rounded, 8);
        std::memcpy(&raised, &mantissa, 8);
        raised += scale << 52;
        double result;
        std::memcpy(&result, &raised, 8);
        x[k] = x[k] > 0.0 ? result : zero;
    }
}

template <class T>
const Kernels<T>& kernels() {
    static constexpr Kernels<T> all = {refresh<T>, refresh_run<T>, scan_blocks<T>, descend<T>, top<T>, power};
    return all;
}

#undef REPLAYBANK_INLINE
