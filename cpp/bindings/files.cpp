// OpenFile: the descriptor of a file, closed as its object goes, without a step in Python: between two such
// steps Python runs handlers of signals, and a Ctrl-C that a finalizer is given is lost. And many small reads.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

class OpenFile {
 public:
  explicit OpenFile(py::object path) {
    PyObject* converted = nullptr;
    if (!PyUnicode_FSConverter(path.ptr(), &converted)) throw py::error_already_set();
    const auto name = py::reinterpret_steal<py::object>(converted);
    do {
      // O_NONBLOCK: opening a named pipe must not wait for somebody to write into it.
      descriptor_ = open(PyBytes_AS_STRING(name.ptr()), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      if (descriptor_ >= 0) return;
    } while (errno == EINTR && PyErr_CheckSignals() == 0);
    if (!PyErr_Occurred()) PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  ~OpenFile() { close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }

  // Fills the rows of memory (count, length), contiguous bytes, one every `step` bytes from `start` on; how
  // many bytes there were before the file ended.
  py::ssize_t read_pieces(const py::buffer& memory, off_t start, off_t step) const {
    const py::buffer_info rows = memory.request(/*writable=*/true);
    auto* to = static_cast<unsigned char*>(rows.ptr);
    const py::ssize_t length = rows.shape.at(1), size = rows.size;
    py::ssize_t done = 0;
    ssize_t got = 1;
    {
      const NoGil nogil;
      while (done < size && (got > 0 || (got < 0 && errno == EINTR))) {
        const py::ssize_t inside = done % length;
        got = pread(descriptor_, to + done, static_cast<size_t>(length - inside),
                    start + done / length * step + inside);
        if (got > 0) done += got;
      }
    }
    if (got >= 0) return done;
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }

 private:
  int descriptor_ = -1;
};

}  // namespace

void bind_files(py::module_& module) {
  py::class_<OpenFile>(module, "OpenFile")
      .def(py::init<py::object>())
      .def("read_pieces", &OpenFile::read_pieces, py::arg("memory"), py::arg("start"), py::arg("step"))
      .def_property_readonly("descriptor", &OpenFile::descriptor);
}

}  // namespace simdformer
