#include "bindings/result_memory.hpp"

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
       [](void*, std::size_t n, std::size_t size) { return take_zeros(n, size); },
       [](void*, void* memory, std::size_t bytes) { return resize_result(memory, bytes); },
       [](void*, void* memory, std::size_t) { give_back_result(memory); }}};
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  return capsule;
}

}  // namespace

bool begin_result_memory() {
  if (steal(PyDataMem_GetHandler()).ptr() != PyDataMem_DefaultHandler) return false;
  steal(PyDataMem_SetHandler(result_memory()));
  return true;
}

void end_result_memory() { Py_XDECREF(PyDataMem_SetHandler(PyDataMem_DefaultHandler)); }

}  // namespace simdformer
