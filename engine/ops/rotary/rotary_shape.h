// The parameters that the kernels of rotary share.
#pragma once

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"
#include "engine/ops/rotary/rotary_angles.h"
#include "engine/ops/row_order.h"

namespace trainctl {

inline constexpr int64_t kMostRotaryPairs = 128;

struct RotaryCall {
  int64_t b = 0, t = 0, units = 0, features = 0;  ///< features: per unit
  int64_t head_dim = 0, rotated = 0;
  int64_t rotary_dim = 0,
          rotary_offset = 0;  ///< features of a head that are rotated, from the offset on; the others are copied
  int64_t first_row = 0;      ///< index in the whole
  int64_t rows = 0;           ///< number of rows of the whole
  bool interleaved = false, inverse = false;
  RotaryAngles angles = {};
  const int32_t* documents = nullptr;  ///< [b, t]: index of the first row of each row's document; null: 0
  const int32_t* starts = nullptr;     ///< [b]: the position of the first row; null: 0
  RowOrder order = {};                 ///< the order in which rows are stored
  int64_t positions = 0;               ///< with starts: positions are less than that

  int64_t pairs() const { return rotary_dim / 2; }
};

/// The position of a row, whose index is `row`, in the document that begins at row `first`.
TRAINCTL_HOST_DEVICE inline int64_t position_in_document(int64_t row, int64_t first) {
  return first <= 0 ? row : first < row ? row - first : 0;
}

/// The position of row `row` of a sample whose first row has position `start`. Rows beyond the last position, which no
/// other row reads, have it too.
TRAINCTL_HOST_DEVICE inline int64_t position_from(int64_t start, int64_t row, int64_t positions) {
  const int64_t position = start + row;
  return position < positions ? position : positions - 1;
}

inline RotaryCall rotary_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  RotaryCall r{.b = x.shape[0], .t = x.shape[1], .head_dim = call.attrs.integer("head_dim")};
  r.features = call.attrs.integer("heads", 1) * r.head_dim;
  r.units = x.shape[2] / r.features;
  r.rotated = call.attrs.integer("rotated", 1);
  r.rotary_dim = call.attrs.integer("rotary_dim", r.head_dim);
  r.rotary_offset = call.attrs.integer("rotary_offset", 0);
  r.first_row = x.offset.size() == 3 ? x.offset[1] : 0;
  r.rows = x.global_shape.size() == 3 ? x.global_shape[1] : r.t;
  r.order = RowOrder::of(call.attrs, r.rows);
  r.positions = call.attrs.integer("positions", 0);
  if (call.in.size() > 1) (r.positions > 0 ? r.starts : r.documents) = call.in[1].as<int32_t>();
  r.interleaved = call.attrs.flag("interleaved");
  r.inverse = call.attrs.flag("inverse");
  r.angles = rotary_angles(call.attrs, r.rotary_dim);
  return r;
}

}  // namespace trainctl
