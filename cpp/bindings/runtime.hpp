// The GIL, let go around a kernel.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace simdformer {

// Lets go of the GIL in a brace: `{ NoGil nogil; parallel_for(...); }`; where it is not worth it, not.
//
// Not pybind11's gil_scoped_release: a daemon thread that comes back while the interpreter shuts down is
// ended by CPython inside PyEval_RestoreThread, by unwinding its stack (before 3.14). That would leave a
// destructor by an exception, which is std::terminate, and change reference counts without the GIL. So the
// thread stops here and sleeps until the process is gone, which is what CPython itself does from 3.14 on.
class NoGil {
 public:
  explicit NoGil(bool lets_go = true) : state_(lets_go ? PyEval_SaveThread() : nullptr) {}
  ~NoGil() {
    try {
      if (state_ != nullptr) PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace simdformer
