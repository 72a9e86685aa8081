#include "core/gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <xtensor/xadapt.hpp>
#include <xtensor/xview.hpp>

#include "core/copy.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {

void embedding(const View& weight, const int64_t* ids, const View& out) {
  if (out.size() == 0) return;
  const KernelTable& table = kernels();
  const Rows target = rows_of(out);
  const int64_t length = weight.shape[1];
  parallel_for(target.count, grain_of_rows(length), [&](int64_t begin, int64_t end) {
    RowCursor row(target, begin);
    ConvertArgs one;
    one.x.dtype = weight.dtype, one.out.dtype = out.dtype;
    one.x.count = one.out.count = 1;
    one.x.length = one.out.length = one.segment = length;
    for (int64_t i = begin; i < end; ++i, row.next()) {
      one.x.data = weight.data + ids[i] * weight.strides[0];
      one.out.data = row.get();
      if (weight.dtype == out.dtype)
        std::memcpy(one.out.data, one.x.data, static_cast<size_t>(length * itemsize(weight.dtype)));
      else
        table.convert(one, 0, 1);
    }
  });
}

void repeat(const View& x, int axis, int64_t n, const View& out) {
  if (out.size() == 0) return;
  View from = x, to = out;  // the axis of out becomes two: which entry, and which time
  insert_axis(from, axis + 1, n, 0);
  insert_axis(to, axis + 1, n, out.strides[axis]);
  to.shape[axis] = x.shape[axis];
  to.strides[axis] = n * out.strides[axis];
  copy_elements(from, to);
}

namespace {

// For the bits of each dtype.
template <class Bits>
void fill_causal(const View& out, int64_t offset, Bits visible, Bits hidden) {
  const auto rows = static_cast<size_t>(out.shape[0]), columns = static_cast<size_t>(out.shape[1]);
  auto mask = xt::adapt(reinterpret_cast<Bits*>(out.data), rows * columns, xt::no_ownership(),
                        std::array<size_t, 2>{rows, columns});
  parallel_for(out.shape[0], grain_of_rows(out.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t query = begin; query < end; ++query) {
      const int64_t seen = std::clamp<int64_t>(query + offset + 1, 0, out.shape[1]);
      xt::view(mask, query, xt::range(0, seen)).fill(visible);
      xt::view(mask, query, xt::range(seen, out.shape[1])).fill(hidden);
    }
  });
}

}  // namespace

void causal_mask(int64_t offset, const View& out) {
  if (out.size() == 0) return;
  // Beyond -L and S an offset changes nothing more, and sums stay within 64 bits.
  offset = std::clamp(offset, -out.shape[0], out.shape[1]);
  switch (out.dtype) {
    case DType::boolean:
      return fill_causal<uint8_t>(out, offset, 1, 0);
    case DType::f32:
      return fill_causal<float>(out, offset, 0, -std::numeric_limits<float>::infinity());
    case DType::f64:
      return fill_causal<double>(out, offset, 0, -std::numeric_limits<double>::infinity());
    case DType::f16:
      return fill_causal<uint16_t>(out, offset, 0, 0xfc00);
    case DType::bf16:
      return fill_causal<uint16_t>(out, offset, 0, 0xff80);
  }
}

}  // namespace simdformer
