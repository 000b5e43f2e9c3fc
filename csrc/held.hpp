// What an array gives by the buffer protocol, for as long as this lives: an address asked of NumPy costs half a
// microsecond or more, this a fifth, and it says how large the array is.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace replaybank {

// Holds nothing, and `is` nothing, where the array is not contiguous, cannot be written and has to be (PyBUF_WRITABLE),
// or is None. The GIL must be held where one is made and where it ends.
class Held {
public:
    explicit Held(nanobind::handle array, int flags = 0)
        : none_(array.is_none()), held_(!none_ && PyObject_GetBuffer(array.ptr(), &view_, PyBUF_ND | flags) == 0) {
        if (!held_ && !none_) PyErr_Clear();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
        if (held_) PyBuffer_Release(&view_);
    }

    bool none() const { return none_; }
    bool is(int dims) const { return held_ && view_.ndim == dims; }
    std::int64_t size(int dim) const { return held_ && dim < view_.ndim ? view_.shape[dim] : 0; }
    std::int64_t item() const { return held_ ? view_.itemsize : 0; }
    template <class T>
    T* data() const {
        return held_ ? static_cast<T*>(view_.buf) : nullptr;
    }

private:
    bool none_, held_;
    Py_buffer view_;
};

// The bytes of each array of a list. The GIL must be held where one is made and where it ends.
class HeldList {
public:
    explicit HeldList(const nanobind::list& arrays) : wanted_(arrays.size()) {
        views_.reserve(wanted_);
        for (nanobind::handle array : arrays) {
            Py_buffer view;
            if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_SIMPLE) != 0) {
                PyErr_Clear();
                return;
            }
            views_.push_back(view);
        }
    }
    HeldList(const HeldList&) = delete;
    HeldList& operator=(const HeldList&) = delete;
    ~HeldList() {
        for (auto& view : views_) PyBuffer_Release(&view);
    }

    // Whether all are arrays, and contiguous; the bytes of each may be asked for only then.
    bool all() const { return views_.size() == wanted_; }
    std::size_t count() const { return wanted_; }
    std::int64_t bytes(std::size_t i) const { return view(i).len; }
    const void* data(std::size_t i) const { return view(i).buf; }

private:
    const Py_buffer& view(std::size_t i) const { return views_[i]; }

    std::size_t wanted_;
    std::vector<Py_buffer> views_;
};

}  // namespace replaybank
