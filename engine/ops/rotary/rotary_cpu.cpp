// rotary on a CPU. The sines and cosines of all rows are computed once, and are shared by the layers that rotate by the
// same angles.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "engine/ops/kernel.h"
#include "engine/ops/rotary/rotary_shape.h"

namespace trainctl {
namespace {

/// The cosines and sines of the angles, [rows, pairs] each, multiplied by the magnitude (rotary_angles.h).
struct Turns {
  std::vector<float> cosines, sines;
};

/// The cosines and sines of rows [first, first + count) of the whole sequence.
std::shared_ptr<const Turns> turns_of(const RotaryCall& r, int64_t first, int64_t count) {
  static thread_local std::map<std::tuple<std::vector<double>, double, int64_t, int64_t, bool>,
                               std::weak_ptr<const Turns>>
      all;
  std::weak_ptr<const Turns>& known = all[{r.angles.rates, r.angles.magnitude, first, count, r.inverse}];
  if (auto turns = known.lock()) return turns;
  auto turns = std::make_shared<Turns>();
  for (int64_t row = first; row < first + count; ++row) {
    for (const double rate : r.angles.rates) {
      const double angle = static_cast<double>(row) * (r.inverse ? -rate : rate);
      turns->cosines.push_back(static_cast<float>(r.angles.magnitude * std::cos(angle)));
      turns->sines.push_back(static_cast<float>(r.angles.magnitude * std::sin(angle)));
    }
  }
  known = turns;
  return turns;
}

/// Rotates the pairs of features i and i + pairs of one head. x and y may be the same memory.
void turn_halves(const float* x, float* y, const float* cosines, const float* sines, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[i], b = x[i + pairs];
    y[i] = a * cosines[i] - b * sines[i];
    y[i + pairs] = b * cosines[i] + a * sines[i];
  }
}

void turn_neighbours(const float* x, float* y, const float* cosines, const float* sines, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cosines[i] - b * sines[i];
    y[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

/// Rotates the pairs of features of each head by the angles of its row's position; other features are copied.
CpuKernel prepare_rotary(const KernelCall& call) {
  const RotaryCall r = rotary_of(call);
  // With documents, a row may have the position of any earlier one, and with starts any position.
  const bool is_ordered = r.order.piece > 0, any = r.documents != nullptr || r.starts != nullptr || is_ordered;
  const int64_t first = any ? 0 : r.first_row, count = r.starts ? r.positions : any ? r.rows : r.t;
  return [r, is_ordered, turns = turns_of(r, first, count), x0 = call.in[0].as<float>(), y0 = call.out[0].as<float>()] {
    const auto turn = r.interleaved ? turn_neighbours : turn_halves;
    const int64_t turned = r.rotated * r.head_dim, pairs = r.pairs(), begin = r.rotary_offset;
    for (int64_t unit = 0; unit < r.b * r.t * r.units; ++unit) {
      int64_t row = unit / r.units % r.t;
      if (is_ordered) row = r.order.position(r.first_row + row);
      if (r.documents != nullptr)
        row = position_in_document(is_ordered ? row : r.first_row + row, r.documents[unit / r.units]);
      if (r.starts != nullptr) row = position_from(r.starts[unit / r.units / r.t], r.first_row + row, r.positions);
      const float *x = x0 + unit * r.features, *cosines = turns->cosines.data() + row * pairs,
                  *sines = turns->sines.data() + row * pairs;
      float* y = y0 + unit * r.features;
      for (int64_t at = 0; at < turned; at += r.head_dim) {
        turn(x + at + begin, y + at + begin, cosines, sines, pairs);
        if (x == y) continue;
        std::copy(x + at, x + at + begin, y + at);
        std::copy(x + at + begin + r.rotary_dim, x + at + r.head_dim, y + at + begin + r.rotary_dim);
      }
      if (x != y) std::copy(x + turned, x + r.features, y + turned);
    }
  };
}

}  // namespace

extern const CpuKernels rotary_cpu = {{"rotary", prepare_rotary}};

}  // namespace trainctl
