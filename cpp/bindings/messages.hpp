// What a refusal says: function, argument, what was found, what is needed and what to do.
#pragma once

// not pybind11/pybind11.h: its functions, compiled, take five times as long as most files that include this
#include <pybind11/cast.h>

#include <string>

#include "base/array.hpp"

namespace simdformer {

namespace py = pybind11;

// Which argument of which function is looked at; for messages, nothing is built before one is needed.
struct Arg {
  const char* function;
  const char* name;
  int index = -1;  // when the argument is a list
};

std::string name_of(const Arg& arg);  // "weight", or "weight[2]"

// "function: argument found, needs needed; advice". The advice may be empty.
std::string message(const Arg& arg, const std::string& found, const std::string& needed,
                    const std::string& advice);
[[noreturn]] void refuse_type(const Arg& arg, const std::string& found, const std::string& needed,
                              const std::string& advice = "");
[[noreturn]] void refuse_value(const Arg& arg, const std::string& found, const std::string& needed,
                               const std::string& advice = "");
[[noreturn]] void refuse_buffer(const Arg& arg, const std::string& found, const std::string& needed,
                                const std::string& advice = "");

py::object imported(const char* module);

// What strangers wrote, in one short line each. An object that fails to say it is "of type ...".
std::string shown(py::handle object);    // its repr
std::string text_of(py::handle object);  // its str
std::string reason_of(const py::error_already_set& error);
std::string type_of(py::handle object);  // "is of type float"

const char* name_of(DType dtype);
std::string shape_text(int rank, const int64_t* shape);  // "(2, 3)", "(4,)", "()"
std::string shape_text(const View& view);

}  // namespace simdformer
