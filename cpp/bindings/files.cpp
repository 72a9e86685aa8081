// OpenFile: the descriptor of a file, closed as its object goes, without a step in Python: between two such
// steps Python runs handlers of signals, and a Ctrl-C that a finalizer is given is lost. And many small reads.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/checks.hpp"
#include "bindings/made.hpp"
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

  // Fills `count` rows of `length` bytes, one every `step` bytes from `start` on; how many bytes there were before
  // the file ended, or -1. Without the GIL.
  int64_t read(char* to, int64_t count, int64_t length, int64_t start, int64_t step) const {
    const int64_t size = count * length;
    int64_t done = 0;
    ssize_t got = 1;
    while (done < size && (got > 0 || (got < 0 && errno == EINTR))) {
      const int64_t inside = done % length;
      got = pread(descriptor_, to + done, static_cast<size_t>(length - inside),
                  start + done / length * step + inside);
      if (got > 0) done += got;
    }
    return got < 0 ? -1 : done;
  }

 private:
  int descriptor_ = -1;
};

int64_t read_pieces(const OpenFile& file, py::handle memory, py::handle start_object,
                    py::handle step_object) {
  const Arg start_arg{"read_pieces", "start"}, step_arg{"read_pieces", "step"};
  const View rows = writable_bytes({"read_pieces", "memory"}, memory);
  if (rows.rank != 2)
    refuse_value({"read_pieces", "memory"}, "has shape " + shape_text(rows), "(count, bytes of a piece)");
  const int64_t start = read_length(start_arg, start_object), step = read_length(step_arg, step_object);
  const int64_t count = rows.shape[0], length = rows.shape[1];
  checked_add(start_arg, checked_add(start_arg, start, length), checked_multiply(step_arg, step, count));
  int64_t done;
  {
    const NoGil nogil;
    done = file.read(rows.data, count, length, start, step);
  }
  if (done >= 0) return done;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

}  // namespace

template <>
struct Made<OpenFile> {
  static constexpr const char *kName = "OpenFile", *kAdvice = "make it with OpenFile(path)";
};

}  // namespace simdformer

namespace pybind11::detail {
template <>
struct type_caster<simdformer::OpenFile> : simdformer::MadeCaster<simdformer::OpenFile> {};
}  // namespace pybind11::detail

namespace simdformer {

void bind_files(py::module_& module) {
  py::class_<OpenFile>(module, "OpenFile")
      .def(py::init<py::object>())
      .def("read_pieces", &read_pieces, py::arg("memory"), py::arg("start"), py::arg("step"))
      .def_property_readonly("descriptor", &OpenFile::descriptor);
}

}  // namespace simdformer
