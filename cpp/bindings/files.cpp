// OpenFile: the descriptor of a file, closed as its object goes, without a step in Python. Between two such
// steps Python runs handlers of signals, and a Ctrl-C that a finalizer is given is lost.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/operations.hpp"

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

 private:
  int descriptor_ = -1;
};

}  // namespace

void bind_files(py::module_& module) {
  py::class_<OpenFile>(module, "OpenFile")
      .def(py::init<py::object>())
      .def_property_readonly("descriptor", &OpenFile::descriptor);
}

}  // namespace simdformer
