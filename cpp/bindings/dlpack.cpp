#include "bindings/dlpack.hpp"

#include "base/sizes.hpp"
#include "bindings/numpy_api.hpp"

namespace simdformer {

namespace {

// ---- the ABI of DLPack 1.x: field order and widths are fixed by the standard ----------------------------

struct Device {
  int32_t type;
  int32_t id;
};
constexpr int64_t kCpu = 1, kCudaHost = 3, kRocmHost = 11;  // memory that the CPU may read
bool is_cpu(int64_t device_type) {
  return device_type == kCpu || device_type == kCudaHost || device_type == kRocmHost;
}

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

enum Flags : uint64_t { kReadOnly = 1, kIsCopy = 2 };

struct ManagedTensorVersioned {  // in a capsule called "dltensor_versioned"
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// ---- dtypes ---------------------------------------------------------------------------------------------

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
  refuse_type(arg, "has " + type_text(dtype), names_of(accept), "convert it first, to float32 for instance");
}

// numpy's number of an integer dtype.
int number_of_integers(const Arg& arg, DataType dtype) {
  if (dtype.lanes == 1 && (dtype.code == kInt || dtype.code == kUInt)) {
    const bool is_signed = dtype.code == kInt;
    switch (dtype.bits) {
      case 8:
        return is_signed ? NPY_INT8 : NPY_UINT8;
      case 16:
        return is_signed ? NPY_INT16 : NPY_UINT16;
      case 32:
        return is_signed ? NPY_INT32 : NPY_UINT32;
      case 64:
        return is_signed ? NPY_INT64 : NPY_UINT64;
    }
  }
  refuse_not_integers(arg, "has " + type_text(dtype));
}

// ---- capsules -------------------------------------------------------------------------------------------

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

void check_device(const Arg& arg, int64_t device_type) {
  if (!is_cpu(device_type))
    refuse_buffer(arg, "lies on DLPack device type " + std::to_string(device_type), "memory of the CPU",
                  "copy it there first: " + name_of(arg) + ".cpu()");
}

// Asked first, because an object may have to wait for its device before it hands out memory.
void check_said_device(const Arg& arg, py::handle object) {
  int64_t type = 0;
  try {
    type = py::tuple(object.attr("__dlpack_device__")())[0].cast<int64_t>();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    refuse_export(arg, error);
  } catch (py::cast_error&) {
    refuse_buffer(arg, "has a __dlpack_device__ that is not a pair of numbers", "memory of the CPU");
  }
  check_device(arg, type);
}

// PyTorch hands out no tensor that requires a gradient. Where none is recorded its values are like any others.
py::object without_gradient(const Arg& arg, py::handle object) {
  const py::object tensor = py::reinterpret_borrow<py::object>(object);
  if (!py::getattr(tensor, "requires_grad", py::none()).is(py::bool_(true))) return tensor;
  const py::object torch = imported("sys").attr("modules").attr("get")("torch");
  if (torch.is_none() || !py::isinstance(tensor, torch.attr("Tensor"))) return tensor;
  if (torch.attr("is_grad_enabled")().cast<bool>())
    refuse_buffer(arg, "requires a gradient", "a tensor that does not",
                  "no gradient comes back from here: call it under torch.no_grad() or "
                  "torch.inference_mode(), or pass " +
                      name_of(arg) + ".detach()");
  return tensor.attr("detach")();
}

py::object capsule_of(const Arg& arg, py::handle object) {
  const py::object tensor = without_gradient(arg, object);
  try {
    try {
      return tensor.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError))
        throw;  // an exporter older than version 1 does not know the keyword
    }
    return tensor.attr("__dlpack__")();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt goes through
    refuse_export(arg, error);
  }
}

const Tensor& tensor_in(const Arg& arg, PyObject* capsule, Access access) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed =
        static_cast<ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->major != 1)
      refuse_buffer(arg, "speaks DLPack version " + std::to_string(managed->major), "version 1 or older");
    if (access == Access::write && (managed->flags & kReadOnly))
      refuse_buffer(arg, "is read-only", "a writable tensor");
    if (access == Access::write && (managed->flags & kIsCopy))
      refuse_buffer(arg, "hands out a copy of its memory", "the memory itself");
    return managed->tensor;
  }
  if (!PyCapsule_IsValid(capsule, "dltensor"))
    refuse_buffer(arg, "has a __dlpack__ that does not return a DLPack capsule", "one");
  return static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
}

// Where the elements are, `itemsize` bytes each. Nothing that the tensor says is believed unseen.
void read_layout(const Arg& arg, const Tensor& tensor, int64_t itemsize, View& view) {
  check_device(arg, tensor.device.type);
  if (tensor.rank < 0 || tensor.rank > kMaxRank)
    refuse_value(arg, "has " + std::to_string(tensor.rank) + " axes", "at most 64");
  view.rank = tensor.rank;
  if (view.rank > 0 && tensor.shape == nullptr)
    refuse_buffer(arg, "has a shape that is a null pointer", "one for each axis");
  bool is_empty = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = tensor.shape[axis];
    if (view.shape[axis] < 0) refuse_value(arg, "has a negative extent", "a shape");
    is_empty |= view.shape[axis] == 0;
  }
  check_size(arg, view);
  if (tensor.data == nullptr && !is_empty)
    refuse_buffer(arg, "has memory that is a null pointer", "memory of the CPU");
  view.data = tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;

  int64_t contiguous = itemsize;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = is_empty ? 0 : contiguous;  // without elements they lead nowhere
    if (is_empty) continue;
    contiguous *= view.shape[axis];
    if (tensor.strides == nullptr) continue;
    view.strides[axis] = itemsize;
    if (!multiply(view.strides[axis], tensor.strides[axis]))
      refuse_value(arg, "has a stride of " + std::to_string(tensor.strides[axis]),
                   "one that 64 bits can count");
  }
}

}  // namespace

bool has_dlpack(py::handle object) { return py::hasattr(object, "__dlpack__"); }

Input read_dlpack(const Arg& arg, py::handle object, Accept accept, Access access) {
  check_said_device(arg, object);
  Input input;
  input.owner = capsule_of(arg, object);
  const Tensor& tensor = tensor_in(arg, input.owner.ptr(), access);
  input.view.dtype = dtype_of(arg, tensor.dtype, accept);
  read_layout(arg, tensor, itemsize(input.view.dtype), input.view);
  return input;
}

namespace {

// An ndarray over the memory that object.__dlpack__() offers, whose `number` is asked of (arg, its dtype).
template <class Number>
py::object array_of(const Arg& arg, py::handle object, Number number) {
  check_said_device(arg, object);
  py::object capsule = capsule_of(arg, object);
  const Tensor& tensor = tensor_in(arg, capsule.ptr(), Access::read);
  const int type = number(arg, tensor.dtype);
  View view;
  view.dtype = DType::f64;  // for its size: no number is wider
  read_layout(arg, tensor, tensor.dtype.bits / 8, view);
  py::object array = make_ndarray(type, view.rank, view.shape, view.strides, view.data);
  if (PyArray_SetBaseObject(as_ndarray(array), capsule.release().ptr()) < 0) throw py::error_already_set();
  return array;
}

}  // namespace

py::object integers_of_dlpack(const Arg& arg, py::handle object) {
  return array_of(arg, object, number_of_integers);
}

py::object array_of_dlpack(const Arg& arg, py::handle object) {
  return array_of(arg, object, [](const Arg& arg, DataType dtype) {
    const bool is_integer = dtype.code == kInt || dtype.code == kUInt;
    return is_integer ? number_of_integers(arg, dtype)
                      : number_of(dtype_of(arg, dtype, Accept::floats_and_bool));
  });
}

}  // namespace simdformer
