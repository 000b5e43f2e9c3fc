// What an array gives by the buffer protocol, for as long as this lives: an address asked of NumPy costs half a
// microsecond or more, this a fifth, and it says how large the array is.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

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

}  // namespace replaybank
