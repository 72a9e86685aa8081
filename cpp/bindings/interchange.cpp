// array_of_tensor: what speaks DLPack as an ndarray, for the lines of Python that compute with one.
#include <string>

#include "bindings/dlpack.hpp"
#include "bindings/operations.hpp"

namespace simdformer {

namespace {

py::object array_of_tensor(py::handle tensor, const std::string& function, const std::string& name) {
  return array_of_dlpack({function.c_str(), name.c_str()}, tensor);
}

}  // namespace

void bind_interchange(py::module_& module) { module.def("array_of_tensor", &array_of_tensor); }

}  // namespace simdformer
