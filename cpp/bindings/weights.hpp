// Weights as arguments: arrays, and the objects that hold one repacked or in few bits.
#pragma once

#include "bindings/checks.hpp"
#include "bindings/made.hpp"
#include "core/linear.hpp"
#include "core/quantized.hpp"

namespace simdformer {

template <>
struct Made<PackedWeight> {
  static constexpr const char *kName = "PackedWeight", *kAdvice = "make it with pack(weight)";
};
template <>
struct Made<QuantizedWeight> {
  static constexpr const char *kName = "QuantizedWeight", *kAdvice = "make it with quantize(weight, type)";
};

// A weight (rows, columns): an array, packed or quantized.
struct Weight {
  Input plain;
  const PackedWeight* packed = nullptr;
  const QuantizedWeight* quantized = nullptr;
  int64_t shape[2];
  DType dtype = DType::f32;  // that of quantized values

  bool is_plain() const { return packed == nullptr && quantized == nullptr; }
};

// `axes` says what an array needs: "(O, I): a row for each output".
void read_weight(const Arg& arg, py::handle object, const char* axes, Weight& weight);

template <class T>
py::tuple shape_of(const T& weight) {
  return py::make_tuple(weight.rows(), weight.cols());
}

}  // namespace simdformer

namespace pybind11::detail {
template <>
struct type_caster<simdformer::PackedWeight> : simdformer::MadeCaster<simdformer::PackedWeight> {};
template <>
struct type_caster<simdformer::QuantizedWeight> : simdformer::MadeCaster<simdformer::QuantizedWeight> {};
}  // namespace pybind11::detail
