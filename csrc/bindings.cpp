// The Python face of the kernels: argument conversion and the GIL, no arithmetic.
//
// Kernels take addresses of tensors that Python has checked (dtype, contiguity, range): an address costs
// 0.08 microseconds, a DLPack exchange of a torch tensor 1.8. Every kernel's header is its manual; its
// NumPy twin is in tests/reference/.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "blocks.hpp"
#include "channel_bindings.hpp"
#include "cuts.hpp"
#include "example_values.hpp"
#include "gather.hpp"
#include "held.hpp"
#include "memory.hpp"
#include "next_leaves.hpp"
#include "pickle_loop.hpp"
#include "seed_sequence.hpp"
#include "slice_starts.hpp"
#include "spans.hpp"
#include "step_windows.hpp"
#include "sum_tree.hpp"
#include "tfrecord.hpp"
#include "trajectory_index.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Address = std::uintptr_t;
using Addresses = std::vector<std::uintptr_t>;
using Count = std::int64_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);  // NOLINT: addresses come from arrays that Python checked
}

// --- gather.hpp -----------------------------------------------------------------------------------------

const replaybank::Leaf* leaves_at(Address plan) { return reinterpret_cast<const replaybank::Leaf*>(plan); }
const std::int64_t* index_at(Address index) { return reinterpret_cast<const std::int64_t*>(index); }
Count size_of(const Addresses& batches) { return static_cast<Count>(batches.size()); }

void bind_gather(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    m.def(
        "gather",
        [](Address plan, Count n, Address index, Count count, const Addresses& batches, Count threads) {
            return replaybank::gather(leaves_at(plan), size_of(batches), n, index_at(index), count, batches.data(),
                                      threads);
        },
        "plan"_a, "n"_a, "index"_a, "count"_a, "batches"_a, "threads"_a, Released());
    m.def(
        "gather_run",
        [](Address plan, Count n, Count start, Count count, const Addresses& batches, Count threads) {
            return replaybank::gather_run(leaves_at(plan), size_of(batches), n, start, count, batches.data(), threads);
        },
        "plan"_a, "n"_a, "start"_a, "count"_a, "batches"_a, "threads"_a, Released());
    m.def(
        "scatter",
        [](Address plan, Count n, Address index, Count count, const Addresses& batches) {
            return replaybank::scatter(leaves_at(plan), size_of(batches), n, index_at(index), count, batches.data());
        },
        "plan"_a, "n"_a, "index"_a, "count"_a, "batches"_a, Released());
    m.def(
        "scatter_run",
        [](Address plan, Count n, Count start, Count count, const Addresses& batches, Count threads) {
            return replaybank::scatter_run(leaves_at(plan), size_of(batches), n, start, count, batches.data(),
                                           threads);
        },
        "plan"_a, "n"_a, "start"_a, "count"_a, "batches"_a, "threads"_a, Released());
    // All `n` items from arrays, which give their bytes by the buffer protocol: an address asked of NumPy costs half a
    // microsecond each. False where one is not contiguous or has another number of bytes.
    m.def("scatter_arrays", [](Address plan, Count n, const nb::list& arrays) {
        const auto* leaves = leaves_at(plan);
        const replaybank::HeldList held(arrays);
        bool good = held.all();
        Addresses addresses;
        for (std::size_t i = 0; good && i < held.count(); ++i) {
            good = held.bytes(i) == n * leaves[i].bytes;
            addresses.push_back(reinterpret_cast<Address>(held.data(i)));
        }
        return good && replaybank::scatter_run(leaves, size_of(addresses), n, 0, n, addresses.data(), 1) == -1;
    });
    m.def(
        "flatten_index",
        [](const Addresses& indices, const std::vector<Count>& sizes, Count count, Address out) {
            return replaybank::flatten_index(indices.data(), sizes.data(), size_of(indices), count,
                                             reinterpret_cast<Count*>(out));
        },
        "indices"_a, "sizes"_a, "count"_a, "out"_a, Released());
}

// --- cuts.hpp -------------------------------------------------------------------------------------------

// Bytes that are copied without the GIL: for fewer, letting it go and waiting for it takes longer than copying.
constexpr Count kReleased = Count{1} << 18;

void bind_cuts(nb::module_& m) {
    namespace cuts = replaybank::cuts;
    // False where an array is not contiguous or has other bytes than the slice, or the plan has other arrays; nothing
    // has been copied then.
    m.def("cut_slice", [](const std::vector<Count>& plan, const nb::list& arrays, Count place, Count length, Count start,
                          Count steps, Count there, std::int32_t number, bool terminated) {
        const cuts::Slice slice{place, length, start, steps, there};
        const replaybank::HeldList held(arrays);
        const auto count = static_cast<Count>(arrays.size());
        if (!slice.good() || !held.all() ||
            static_cast<Count>(plan.size()) != cuts::kMarks + cuts::kEach * count)
            return false;
        const auto array = [&plan](std::size_t i) {
            return plan.data() + cuts::kMarks + cuts::kEach * static_cast<Count>(i);
        };
        Count bytes = 0;
        for (std::size_t i = 0; i < held.count(); ++i) {
            if (held.bytes(i) != cuts::wanted(array(i), slice) * array(i)[2]) return false;
            bytes += held.bytes(i);
        }
        const auto copy = [&] {
            for (std::size_t i = 0; i < held.count(); ++i) cuts::copy(array(i), slice, held.data(i));
            cuts::mark(plan.data(), slice, number, terminated);
        };
        if (bytes >= kReleased) {
            nb::gil_scoped_release released;
            copy();
        } else {
            copy();
        }
        return true;
    });
}

// --- memory.hpp -----------------------------------------------------------------------------------------

void bind_memory(nb::module_& m) {
    m.def("ask_large_pages", &replaybank::ask_large_pages, "address"_a, "bytes"_a);
    m.def("reserve_blocks", &replaybank::reserve_blocks, "file"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("start_write_back", &replaybank::start_write_back, "file"_a, "offset"_a, "bytes"_a,
          nb::call_guard<nb::gil_scoped_release>());
}

// --- next_leaves.hpp ------------------------------------------------------------------------------------

// What Python holds: two plans, and a state of header, places and stack (addresses and sizes).
using NextArgs = std::vector<Count>;

replaybank::NextLeaves next_of(const NextArgs& args) {
    const auto address = [&args](std::size_t i) { return static_cast<Address>(args[i]); };
    return {leaves_at(address(0)), leaves_at(address(1)), args[2], at<std::int32_t>(address(3)), args[4], args[5],
            {at<Count>(address(6)), at<std::int32_t>(address(7)), args[8]}};
}

void bind_next_leaves(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    m.def("next_compare", [](const NextArgs& next, Count start, Count count, const Addresses& sources,
                             const Addresses& made, Address derived) {
        return replaybank::next_compare(next_of(next), start, count, sources.data(), made.data(),
                                        at<std::uint8_t>(derived));
    }, Released());
    m.def("next_release", [](const NextArgs& next, Address index, Count count) {
        return replaybank::next_release(next_of(next), index_at(index), count);
    }, Released());
    m.def("next_settle", [](const NextArgs& next, Address index, Count count, const Addresses& made, Address derived) {
        return replaybank::next_settle(next_of(next), index_at(index), count, made.data(),
                                       at<const std::uint8_t>(derived));
    }, Released());
    m.def("next_gather", [](const NextArgs& next, Count valid, Address index, Count count, const Addresses& batches,
                            Count threads) {
        return replaybank::next_gather(next_of(next), valid, index_at(index), count, batches.data(), threads);
    }, Released());
}

// --- blocks.hpp -----------------------------------------------------------------------------------------

void bind_blocks(nb::module_& m) {
    const auto blocks_of = [](const Addresses& chunks, Count chunk_blocks, Address header) {
        return replaybank::Blocks{chunks.data(), chunk_blocks, size_of(chunks) * chunk_blocks, at<Count>(header)};
    };
    m.attr("BLOCK_BYTES") = replaybank::Blocks::kBlock;
    m.attr("BLOCK_PAYLOAD") = replaybank::Blocks::kPayload;
    m.def("blocks_write", [blocks_of](const Addresses& chunks, Count chunk_blocks, Address header,
                                      const nb::bytes& from) {
        return replaybank::blocks_write(blocks_of(chunks, chunk_blocks, header),
                                        static_cast<const char*>(from.data()), static_cast<Count>(from.size()));
    });
    m.def("blocks_free", [blocks_of](const Addresses& chunks, Count chunk_blocks, Address header, Count first,
                                     Count bytes) {
        replaybank::blocks_free(blocks_of(chunks, chunk_blocks, header), first, bytes);
    });
    // New bytes, or None where the chain is damaged.
    m.def("blocks_read", [blocks_of](const Addresses& chunks, Count chunk_blocks, Address header, Count first,
                                     Count bytes) -> nb::object {
        const nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
        if (!out.is_valid()) throw nb::python_error();
        const auto blocks = blocks_of(chunks, chunk_blocks, header);
        if (!replaybank::blocks_read(blocks, first, bytes, PyBytes_AsString(out.ptr()))) return nb::none();
        return out;
    });
}

// --- sum_tree.hpp ---------------------------------------------------------------------------------------

namespace wt = replaybank::weights;

// A tree as Python holds it: where it is, its number of leaves, and whether they are float64.
template <class F>
auto with_tree(Address base, Count capacity, bool wide, F&& use) {
    return wide ? use(wt::Tree<double>(at<void>(base), capacity)) : use(wt::Tree<float>(at<void>(base), capacity));
}

template <class T>
wt::Tree<T> another(const wt::Tree<T>& like, Address base) {
    return wt::Tree<T>(at<void>(base), like.capacity);
}

void bind_sum_tree(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    m.def("tree_simd", [](int set) {
        const int before = wt::simd();
        if (set >= 0 && set <= wt::chosen_simd()) wt::simd() = set;
        return before;
    }, "set"_a = -1);
    m.def("seed_word", [](const std::vector<std::uint64_t>& key) {
        return replaybank::seeds::seed_word(key.data(), key.size());
    });
    m.def("all_are", [](Address numbers, Count n, Count value) {
        return wt::all_are(at<const std::int64_t>(numbers), n, value);
    }, "numbers"_a, "n"_a, "value"_a);
    m.def("tree_levels", [](Count capacity, bool wide) {
        return with_tree(0, capacity, wide, [](const auto& tree) {
            std::vector<Count> offsets;
            for (int level = 0; level <= tree.depth; ++level)
                offsets.push_back(static_cast<Count>(reinterpret_cast<Address>(tree.level[level])));
            offsets.push_back(tree.bytes);
            return offsets;
        });
    }, "capacity"_a, "wide"_a);
    m.def("tree_top", [](Address base, Count capacity, bool wide) {
        return with_tree(base, capacity, wide, [](const auto& tree) {
            double sum;
            std::decay_t<decltype(*tree.leaves())> minimum, maximum;
            wt::kernels<decltype(minimum)>().top(tree, sum, minimum, maximum);
            return nb::make_tuple(sum, static_cast<double>(minimum), static_cast<double>(maximum));
        });
    }, "base"_a, "capacity"_a, "wide"_a);
    m.def("tree_update", [](Address base, Count capacity, bool wide, Count limit, Address items, Count count,
                            Address values, bool wide_values, Count step, double eps, double alpha, bool skip,
                            Address stale) {
        const wt::Verdict verdict = [&] {
            nb::gil_scoped_release released;
            return with_tree(base, capacity, wide, [&](const auto& tree) {
                const auto* index = at<const std::int64_t>(items);
                const auto* old = at<const std::uint8_t>(stale);
                return wide_values ? wt::update(tree, limit, index, count, at<const double>(values), step, eps, alpha,
                                                skip, old)
                                   : wt::update(tree, limit, index, count, at<const float>(values), step, eps, alpha,
                                                skip, old);
            });
        }();
        return nb::make_tuple(static_cast<Count>(verdict.kind), verdict.position, verdict.largest);
    }, "base"_a, "capacity"_a, "wide"_a, "limit"_a, "items"_a, "count"_a, "values"_a, "wide_values"_a, "step"_a,
       "eps"_a, "alpha"_a, "skip"_a, "stale"_a);
    m.def("tree_fill", [](Address base, Count capacity, bool wide, Count first, Count count, double weight) {
        return with_tree(base, capacity, wide,
                         [&](const auto& tree) { return wt::fill(tree, first, count, weight); });
    }, "base"_a, "capacity"_a, "wide"_a, "first"_a, "count"_a, "weight"_a, Released());
    m.def("tree_refresh", [](Address base, Count capacity, bool wide) {
        with_tree(base, capacity, wide, [&](const auto& tree) {
            wt::refresh_above_run(tree, 0, capacity - 1);
            return 0;
        });
    }, "base"_a, "capacity"_a, "wide"_a, Released());
    m.def("tree_select_run", [](Address base, Count capacity, bool wide, Address source, Address mask, Count first,
                                Count count) {
        return with_tree(base, capacity, wide, [&](const auto& tree) {
            return wt::select_run(tree, another(tree, source), at<const std::uint8_t>(mask), first, count);
        });
    }, "base"_a, "capacity"_a, "wide"_a, "source"_a, "mask"_a, "first"_a, "count"_a, Released());
    m.def("tree_select", [](Address base, Count capacity, bool wide, Address source, Address mask, Address items,
                            Count count) {
        return with_tree(base, capacity, wide, [&](const auto& tree) {
            return wt::select(tree, another(tree, source), at<const std::uint8_t>(mask),
                              at<const std::int64_t>(items), count);
        });
    }, "base"_a, "capacity"_a, "wide"_a, "source"_a, "mask"_a, "items"_a, "count"_a, Released());
    m.def("tree_draw", [](Address base, Count capacity, bool wide, Address values, Count count, bool shares,
                          bool stratified, double beta, Count stamp, Address items, Address weights,
                          Address importance, Address stamps) {
        return with_tree(base, capacity, wide, [&](const auto& tree) {
            using T = std::decay_t<decltype(*tree.leaves())>;
            return wt::draw<T>(tree, at<const double>(values), count, shares, stratified,
                               {at<std::int64_t>(items), at<T>(weights), at<T>(importance), at<std::int64_t>(stamps),
                                beta, stamp});
        });
    }, "base"_a, "capacity"_a, "wide"_a, "values"_a, "count"_a, "shares"_a, "stratified"_a, "beta"_a, "stamp"_a,
       "items"_a, "weights"_a, "importance"_a, "stamps"_a, Released());
}

// --- tfrecord.hpp, example_values.hpp -------------------------------------------------------------------

namespace tfr = replaybank::tfrecord;

// Releasing the GIL costs more than walking a small payload, and far more when another thread takes it.
constexpr std::size_t kReleaseAbove = std::size_t{1} << 18;

constexpr std::int64_t kRowsAtOnce = 64;

// Payloads are `bytes`: immutable and held by the caller for as long as the call lasts.
struct Payload {
    explicit Payload(const nb::bytes& from) : data(static_cast<const tfr::Byte*>(from.data())), size(from.size()) {}
    const tfr::Byte* data;
    std::size_t size;
};

// An array to write to gives its address and size by the buffer protocol: asked of NumPy they cost a microsecond.
struct Room {
    explicit Room(const nb::object& array) {
        if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE) != 0) throw nb::python_error();
        data = static_cast<tfr::Byte*>(view.buf);
        size = static_cast<std::size_t>(view.len);
    }
    ~Room() { PyBuffer_Release(&view); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    Py_buffer view{};
    tfr::Byte* data;
    std::size_t size;
};

void bind_tfrecord(nb::module_& m) {
    // The whole records at the beginning of `size` bytes of a buffer, each as (eight bytes of length, payload, CRC of
    // the length, CRC of the payload).
    m.def("cut_records", [](const nb::bytearray& from, std::size_t size) {
        const auto* data = static_cast<const tfr::Byte*>(from.data());
        size = std::min(size, from.size());
        std::int64_t rows[kRowsAtOnce * tfr::kRecordColumns];
        nb::list records;
        std::size_t at = 0;
        std::int64_t count = kRowsAtOnce;
        while (count == kRowsAtOnce) {
            count = tfr::scan_records(data, size, at, rows, kRowsAtOnce);
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t* row = rows + i * static_cast<std::int64_t>(tfr::kRecordColumns);
                const auto* record = data + row[0];
                const auto length = static_cast<std::size_t>(row[1]);
                records.append(nb::make_tuple(nb::bytes(record, tfr::kLengthSize),
                                              nb::bytes(record + tfr::kHeaderSize, length), row[2], row[3]));
                at = static_cast<std::size_t>(row[0]) + tfr::kHeaderSize + length + tfr::kFooterSize;
            }
        }
        return records;
    });
    m.def("index_example", [](const nb::bytes& payload, std::uintptr_t rows, std::size_t capacity) {
        const Payload from(payload);
        std::optional<nb::gil_scoped_release> released;
        if (from.size > kReleaseAbove) released.emplace();
        return tfr::index_example(from.data, from.size, at<std::int64_t>(rows), capacity);
    });
    m.def("match_example", [](const nb::bytes& payload, const nb::bytes& names, std::uintptr_t offsets,
                              std::size_t count, std::uintptr_t rows) {
        const Payload from(payload);
        const tfr::Names wanted{Payload(names).data, at<const std::int64_t>(offsets), count};
        std::optional<nb::gil_scoped_release> released;
        if (from.size > kReleaseAbove) released.emplace();
        return tfr::match_example(from.data, from.size, wanted, at<std::int64_t>(rows));
    });
    m.def("decode_numbers", [](const nb::bytes& payload, std::int64_t offset, std::int64_t length, int dtype,
                               const nb::object& out, std::size_t count) {
        const Payload from(payload);
        const Room room(out);
        const std::size_t item = tfr::item_size(dtype);
        if (item == 0 || count > room.size / item) return tfr::kMismatch;
        std::optional<nb::gil_scoped_release> released;
        if (length > static_cast<std::int64_t>(kReleaseAbove)) released.emplace();
        return tfr::decode_numbers(from.data, from.size, offset, length, dtype, room.data, count);
    });
    m.def("decode_bytes", [](const nb::bytes& payload, std::int64_t offset, std::int64_t length, const nb::object& out,
                             std::size_t count) {
        const Payload from(payload);
        const Room room(out);
        if (count > room.size / (2 * sizeof(std::int64_t))) return tfr::kMismatch;
        return tfr::decode_bytes(from.data, from.size, offset, length, reinterpret_cast<std::int64_t*>(room.data), count);
    });
    m.def("same_bytes", [](const nb::bytes& payload, std::int64_t offset, std::int64_t length,
                           std::size_t count) -> std::optional<nb::bytes> {
        const Payload from(payload);
        const tfr::Span found = tfr::same_bytes(from.data, from.size, offset, length, count);
        if (found.at == nullptr) return std::nullopt;
        return nb::bytes(found.at, found.size());
    });
    m.def("lay_numbers", [](Address rows, Address columns, std::size_t count, Address places) {
        return tfr::lay_numbers(at<const std::int64_t>(rows), at<const tfr::Column>(columns), count,
                                at<std::int64_t>(places));
    });
    m.def("fill_numbers", [](const nb::bytes& payload, Address rows, Address columns, std::size_t count,
                             Address places, const nb::object& out) {
        const Payload from(payload);
        const Room room(out);
        std::optional<nb::gil_scoped_release> released;
        if (room.size > kReleaseAbove) released.emplace();
        return tfr::fill_numbers(from.data, from.size, at<const std::int64_t>(rows), at<const tfr::Column>(columns),
                                 count, at<const std::int64_t>(places), room.data, room.size);
    });
}

// --- pickle_loop.hpp ------------------------------------------------------------------------------------

void bind_pickles(nb::module_& m) {
    namespace pk = replaybank::pickles;
    // Why it stopped, where, and the machine's floor and room then. None of the lists may be changed meanwhile.
    m.def("run_pickle", [](const nb::bytes& data, std::int64_t at, const nb::list& stack, const nb::list& marks,
                           const nb::dict& memo, std::int64_t floor, std::int64_t room) {
        pk::Machine machine{static_cast<const unsigned char*>(data.data()),
                            static_cast<pk::Size>(data.size()),
                            static_cast<pk::Size>(at),
                            stack.ptr(),
                            marks.ptr(),
                            memo.ptr(),
                            static_cast<pk::Size>(floor),
                            room};
        const pk::Stop stop = pk::run_pickle(machine);
        if (stop == pk::Stop::kError) throw nb::python_error();
        return nb::make_tuple(static_cast<int>(stop), static_cast<std::int64_t>(machine.at),
                              static_cast<std::int64_t>(machine.floor), machine.room);
    });
}

// --- spans.hpp ------------------------------------------------------------------------------------------

void bind_spans(nb::module_& m) {
    m.def("spans_starting",
          [](const nb::bytes& data, std::uintptr_t spans, std::size_t count, const nb::bytes& prefix) {
              return replaybank::spans_starting(static_cast<const unsigned char*>(data.data()), data.size(),
                                                at<const std::int64_t>(spans), count,
                                                static_cast<const unsigned char*>(prefix.data()), prefix.size());
          });
    m.def("join_spans", [](const nb::bytes& data, std::uintptr_t spans, std::size_t count, std::uintptr_t out,
                           std::size_t room) {
        const auto* from = static_cast<const unsigned char*>(data.data());
        const std::size_t size = data.size();
        const nb::gil_scoped_release released;
        return replaybank::join_spans(from, size, at<const std::int64_t>(spans), count, at<unsigned char>(out), room);
    });
}

// --- trajectory_index.hpp -------------------------------------------------------------------------------

namespace tr = replaybank::trajectories;

// The index as Python holds it: two sets of `n_words` words, and a shape.
tr::Index index_of(Address last_words, Address last_counts, Address eligible_words, Address eligible_counts,
                   tr::i64 n_words, tr::i64 padded, tr::i64 columns, tr::i64 length, tr::i64 min_length) {
    return {tr::RankedBits(at<tr::u64>(last_words), at<tr::u32>(last_counts), n_words),
            tr::RankedBits(at<tr::u64>(eligible_words), at<tr::u32>(eligible_counts), n_words),
            padded, columns, length, min_length};
}

void bind_trajectory_index(nb::module_& m) {
    using tr::i64;
    const auto nogil = nb::call_guard<nb::gil_scoped_release>();
    m.def("ranked_counts_size", &tr::RankedBits::counts_size);
    m.def("ranked_count", [](Address words, Address counts, i64 n_words) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).count();
    });
    m.def("ranked_assign", [](Address words, Address counts, i64 n_words, i64 bit, bool value) {
        tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).assign(bit, value);
    });
    m.def("ranked_select", [](Address words, Address counts, i64 n_words, i64 rank) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).select(rank);
    });
    m.def("ranked_at_or_before", [](Address words, Address counts, i64 n_words, i64 bit) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).at_or_before(bit);
    });
    m.def("ranked_at_or_after", [](Address words, Address counts, i64 n_words, i64 bit) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).at_or_after(bit);
    });
    m.def("trajectory_apply", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                                 i64 length, i64 min_length, i64 rows, i64 start, i64 count, Address flags,
                                 Address before, Address cut, i64 step) {
        auto index = index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length);
        return tr::apply(index, rows, start, count, at<tr::u8>(flags), at<tr::u8>(before), at<tr::u8>(cut), step);
    }, nogil);
    m.def("trajectory_changes", [](Address values, i64 count, i64 columns, i64 bytes, Address after,
                                   Address flags) {
        tr::changes(at<tr::u8>(values), count, columns, bytes, at<tr::u8>(after), at<tr::u8>(flags));
    }, nogil);
    m.def("trajectory_changes_in_place", [](Address values, i64 step, i64 bytes, i64 rows, i64 start, i64 count,
                                            bool goes_on, Address flags) {
        tr::changes_in_place(at<tr::u8>(values), step, bytes, rows, start, count, goes_on, at<tr::u8>(flags));
    }, nogil);
    m.def("copy_bytes", [](Address from, i64 count, Address to) {
        std::memcpy(at<void>(to), at<void>(from), static_cast<std::size_t>(count));
    });
    m.def("copy_spread", [](Address from, i64 stride, i64 bytes, i64 count, Address to) {
        tr::copy_spread(at<tr::u8>(from), stride, bytes, count, at<tr::u8>(to));
    }, nogil);
    m.def("trajectory_evaluate", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded,
                                    i64 columns, i64 length, i64 min_length) {
        auto index = index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length);
        tr::evaluate_all(index);
    }, nogil);
    m.def("trajectory_lengths", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded,
                                   i64 columns, i64 length, i64 min_length, Address out) {
        tr::length_range(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(out));
    }, nogil);
    m.def("trajectory_nth", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                               i64 length, i64 min_length, Address ranks, i64 n, Address out_columns, Address first,
                               Address steps) {
        return tr::nth(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(ranks), n,
                       at<i64>(out_columns), at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_draw", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                                i64 length, i64 min_length, Address randoms, i64 n, i64 slice_len, i64 left, i64 right,
                                Address out_columns, Address first, Address steps) {
        return tr::draw(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(randoms), n,
                        slice_len, left, right, at<i64>(out_columns), at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_cut_windows", [](Address randoms, i64 n, i64 slice_len, i64 left, i64 right, i64 length,
                                       Address first, Address steps) {
        return tr::cut_windows(at<i64>(randoms), 1, n, slice_len, left, right, length, at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_expand", [](Address columns, Address first, Address steps, i64 n, i64 length, Address time,
                                  Address column, Address ends) {
        tr::expand(at<i64>(columns), at<i64>(first), at<i64>(steps), n, length, at<i64>(time), at<i64>(column),
                   at<tr::u8>(ends));
    }, nogil);
    m.def("slice_starts", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                             i64 length, i64 min_length, i64 start, i64 count, i64 needed, bool first_steps,
                             Address mask) {
        tr::starts(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), start, count, needed,
                   first_steps, at<tr::u8>(mask));
    }, nogil);
    m.def("slice_either", [](Address left, Address right, i64 n, Address out) {
        tr::either(at<tr::u8>(left), at<tr::u8>(right), n, at<tr::u8>(out));
    }, nogil);
    m.def("slice_repeat", [](Address values, bool wide, Address steps, i64 n, Address out) {
        if (wide) {
            tr::repeat(at<tr::u64>(values), at<i64>(steps), n, at<tr::u64>(out));
        } else {
            tr::repeat(at<tr::u32>(values), at<i64>(steps), n, at<tr::u32>(out));
        }
    }, "values"_a, "wide"_a, "steps"_a, "n"_a, "out"_a, nogil);
    m.def("slice_spans", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                            i64 length, i64 min_length, Address items, i64 n, i64 slice_len, Address out_columns,
                            Address first, Address steps) {
        return tr::spans(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(items), n,
                         slice_len, at<i64>(out_columns), at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("slice_places", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                             i64 length, i64 min_length, Address items, i64 n, Address before, Address left) {
        return tr::places(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(items), n,
                          at<i64>(before), at<i64>(left));
    }, nogil);
    m.def("step_windows", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                             i64 length, i64 min_length, Address items, i64 n, i64 back, i64 ahead, Address slots,
                             Address before, Address left) {
        return tr::windows(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(items), n,
                           back, ahead, at<i64>(slots), at<i64>(before), at<i64>(left));
    }, nogil);
    m.def("step_choices", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                             i64 length, i64 min_length, Address items, i64 n, i64 which, Address randoms,
                             Address out) {
        return tr::chosen_steps(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length),
                                at<i64>(items), n, which, at<i64>(randoms), at<i64>(out));
    }, nogil);
    m.def("slice_lengthened", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                                 i64 length, i64 min_length, Address slots, Address ends, i64 count, i64 n,
                                 Address out, Address from, Address made_up) {
        return tr::lengthened(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(slots),
                              at<tr::u8>(ends), count, n, at<i64>(out), at<i64>(from), at<tr::u8>(made_up));
    }, nogil);
    m.def("slice_first_steps", [](Address ends, i64 count, i64 n, Address out) {
        tr::first_steps(at<tr::u8>(ends), count, n, at<tr::u8>(out));
    }, nogil);
    m.def("step_returns", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                             i64 length, i64 min_length, Address items, i64 n, i64 most, Address rewards, i64 stride,
                             bool wide, i64 width, double gamma, Address powers, i64 known, Address out, Address steps,
                             Address discounts, Address last) {
        const auto index = index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length);
        const auto run = [&](auto kind) {
            using T = decltype(kind);
            return tr::returns<T>(index, at<i64>(items), n, most, at<char>(rewards), stride, width, gamma,
                                  at<double>(powers), known, at<T>(out), at<i64>(steps), at<T>(discounts),
                                  at<i64>(last));
        };
        return wide ? run(double{}) : run(float{});
    }, nogil);
    m.def("discounted_sums", [](Address values, bool wide, i64 n, i64 most, i64 width, Address steps, Address powers,
                                Address out) {
        if (wide) {
            tr::discounted_sums(at<double>(values), n, most, width, at<i64>(steps), at<double>(powers),
                                at<double>(out));
        } else {
            tr::discounted_sums(at<float>(values), n, most, width, at<i64>(steps), at<double>(powers), at<float>(out));
        }
    }, nogil);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels over raw arrays.";
    bind_gather(m);
    bind_cuts(m);
    bind_memory(m);
    bind_blocks(m);
    replaybank::bind_channels(m);
    bind_next_leaves(m);
    bind_pickles(m);
    bind_spans(m);
    bind_sum_tree(m);
    bind_tfrecord(m);
    bind_trajectory_index(m);
}
