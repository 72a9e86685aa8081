#include "bindings/messages.hpp"

namespace simdformer {

std::string name_of(const Arg& arg) {
  return arg.index < 0 ? arg.name : std::string(arg.name) + "[" + std::to_string(arg.index) + "]";
}

std::string message(const Arg& arg, const std::string& found, const std::string& needed,
                    const std::string& advice) {
  const std::string text =
      std::string(arg.function) + ": " + name_of(arg) + " " + found + ", needs " + needed;
  return advice.empty() ? text : text + "; " + advice;
}

void refuse_type(const Arg& arg, const std::string& found, const std::string& needed,
                 const std::string& advice) {
  throw py::type_error(message(arg, found, needed, advice));
}
void refuse_value(const Arg& arg, const std::string& found, const std::string& needed,
                  const std::string& advice) {
  throw py::value_error(message(arg, found, needed, advice));
}
void refuse_buffer(const Arg& arg, const std::string& found, const std::string& needed,
                   const std::string& advice) {
  throw py::buffer_error(message(arg, found, needed, advice));
}

py::object imported(const char* module) {
  auto found = py::reinterpret_steal<py::object>(PyImport_ImportModule(module));
  if (!found) throw py::error_already_set();
  return found;
}

// ---- what strangers wrote ---------------------------------------------------------------------------------

namespace {

std::string one_line(const std::string& text) {
  constexpr size_t kLongest = 200;
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    if (!blank) line += c;
    if (blank && !line.empty() && line.back() != ' ') line += ' ';
  }
  if (line.size() <= kLongest) return line;
  size_t end = kLongest;
  while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // not inside a character of UTF-8
  return line.substr(0, end) + "...";
}

std::string said(PyObject* (*say)(PyObject*), py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(say(object.ptr()));
  const auto bytes = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (!bytes) {  // an object may fail at this, too; an int does from 4300 digits on
    PyErr_Clear();
    return "of type " + one_line(Py_TYPE(object.ptr())->tp_name);
  }
  return one_line(std::string(PyBytes_AS_STRING(bytes.ptr()), PyBytes_GET_SIZE(bytes.ptr())));
}

}  // namespace

std::string shown(py::handle object) { return said(PyObject_Repr, object); }
std::string text_of(py::handle object) { return said(PyObject_Str, object); }
std::string reason_of(const py::error_already_set& error) { return text_of(error.value()); }
std::string type_of(py::handle object) { return "is of type " + one_line(Py_TYPE(object.ptr())->tp_name); }

// ---- dtypes and shapes ------------------------------------------------------------------------------------

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::boolean:
      break;
  }
  return "bool";
}

std::string shape_text(int rank, const int64_t* shape) {
  std::string text = "(";
  for (int axis = 0; axis < rank; ++axis) text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  return text + (rank == 1 ? ",)" : ")");
}
std::string shape_text(const View& view) { return shape_text(view.rank, view.shape); }

}  // namespace simdformer
