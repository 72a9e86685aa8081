#include "bindings/dlpack.hpp"

namespace simdformer {

namespace {

// ---- the ABI of DLPack 1.x: field order and widths are fixed by the standard ----------------------------

struct Device {
  int32_t type;
  int32_t id;
};
constexpr int64_t kCpu = 1, kCudaHost = 3, kRocmHost = 11;  // memory that the CPU may read

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null = C order
  uint64_t byte_offset;
};

struct ManagedTensor {  // in a capsule called "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct ManagedTensorVersioned {  // in a capsule called "dltensor_versioned"
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// ---- reading --------------------------------------------------------------------------------------------

std::string type_text(DataType dtype) {
  const char* kind = dtype.code == kInt       ? "int"
                     : dtype.code == kUInt    ? "uint"
                     : dtype.code == kFloat   ? "float"
                     : dtype.code == kBfloat  ? "bfloat"
                     : dtype.code == kComplex ? "complex"
                                              : nullptr;
  if (dtype.lanes != 1) return "a vector dtype";
  if (dtype.code == kBool) return "dtype bool";
  if (kind == nullptr) return "DLPack type code " + std::to_string(dtype.code);
  return std::string("dtype ") + kind + std::to_string(dtype.bits);
}

DType dtype_of(const Arg& arg, DataType dtype, Accept accept) {
  if (dtype.lanes == 1) {
    if (dtype.code == kFloat && dtype.bits == 32) return DType::f32;
    if (dtype.code == kFloat && dtype.bits == 64) return DType::f64;
    if (dtype.code == kFloat && dtype.bits == 16) return DType::f16;
    if (dtype.code == kBfloat && dtype.bits == 16) return DType::bf16;
    if (dtype.code == kBool && dtype.bits == 8 && accept == Accept::floats_and_bool) return DType::boolean;
  }
  refuse_type(arg, "has " + type_text(dtype),
              accept == Accept::floats_and_bool ? "bool, float32, float64, float16 or bfloat16"
                                                : "float32, float64, float16 or bfloat16",
              "convert it first, to float32 for instance");
}

// What the object's own refusal says, under our heading and with it as the cause.
[[noreturn]] void refuse_export(const Arg& arg, py::error_already_set& error) {
  const std::string reason = reason_of(error);
  error.restore();
  const std::string text =
      message(arg, "does not hand out its memory (" + reason + ")", "a plain tensor on the CPU",
              "pass " + name_of(arg) + ".detach().cpu() or a numpy array");
  py::raise_from(PyExc_BufferError, text.c_str());
  throw py::error_already_set();
}

py::object capsule_of(const Arg& arg, py::handle object) {
  try {
    try {
      return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError))
        throw;  // an exporter older than version 1 does not know the keyword
    }
    return object.attr("__dlpack__")();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt goes through
    refuse_export(arg, error);
  }
}

}  // namespace

bool has_dlpack(py::handle object) { return py::hasattr(object, "__dlpack__"); }

void check_cpu(const Arg& arg, py::handle object) {
  int64_t type = 0;
  try {
    type = py::tuple(object.attr("__dlpack_device__")())[0].cast<int64_t>();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    refuse_export(arg, error);
  } catch (py::cast_error&) {
    refuse_buffer(arg, "has a __dlpack_device__ that is not a pair of numbers", "memory of the CPU");
  }
  if (type != kCpu && type != kCudaHost && type != kRocmHost)
    refuse_buffer(arg, "lies on DLPack device type " + std::to_string(type), "memory of the CPU",
                  "copy it there first: " + name_of(arg) + ".cpu()");
}

Input read_dlpack(const Arg& arg, py::handle object, Accept accept) {
  check_cpu(arg, object);
  Input input;
  input.owner = capsule_of(arg, object);
  PyObject* const capsule = input.owner.ptr();
  const Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed =
        static_cast<ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->major != 1)
      refuse_buffer(arg, "speaks DLPack version " + std::to_string(managed->major), "version 1 or older");
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    tensor = &static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
  } else {
    refuse_buffer(arg, "has a __dlpack__ that does not return a DLPack capsule", "one");
  }
  if (tensor->rank < 0 || tensor->rank > kMaxRank)
    refuse_value(arg, "has " + std::to_string(tensor->rank) + " axes", "at most 64");

  View& view = input.view;
  view.dtype = dtype_of(arg, tensor->dtype, accept);
  view.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  view.rank = tensor->rank;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = tensor->shape[axis];
    if (view.shape[axis] < 0) refuse_value(arg, "has a negative extent", "a shape");
  }
  check_size(arg, view);
  int64_t stride = itemsize(view.dtype);
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = tensor->strides != nullptr ? tensor->strides[axis] * itemsize(view.dtype) : stride;
    stride *= view.shape[axis];
  }
  return input;
}

}  // namespace simdformer
