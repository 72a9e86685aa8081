#include "bindings/result_memory.hpp"

#include <cstdlib>

#include "bindings/numpy_api.hpp"
#include "core/result_memory.hpp"

namespace simdformer {
namespace {

// numpy keeps the pointer with every array; it and what it points to stay for good.
PyObject* result_memory() {
  static PyDataMem_Handler handler{
      "simdformer",
      1,
      {nullptr, [](void*, std::size_t bytes) { return take_result(bytes); },
       [](void*, std::size_t n, std::size_t size) { return std::calloc(n, size); },
       [](void*, void* memory, std::size_t bytes) { return std::realloc(memory, bytes); },
       [](void*, void* memory, std::size_t) { give_back_result(memory); }}};
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  return capsule;
}

}  // namespace

bool begin_result_memory() {
  PyObject* const before = PyDataMem_SetHandler(result_memory());
  if (before == nullptr) throw py::error_already_set();
  const bool was_default = before == PyDataMem_DefaultHandler;
  if (!was_default) Py_XDECREF(PyDataMem_SetHandler(before));
  Py_DECREF(before);
  return was_default;
}

void end_result_memory() { Py_XDECREF(PyDataMem_SetHandler(PyDataMem_DefaultHandler)); }

}  // namespace simdformer
