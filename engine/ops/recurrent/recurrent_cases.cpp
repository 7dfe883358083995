// Cases of recurrent: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

double cell_gate(double x) { return 1 / (1 + std::exp(-x)); }

double& cell_place(Tensor64& tensor, int64_t n, int64_t t, int64_t i) {
  return tensor.values[static_cast<size_t>((n * tensor.shape[1] + t) * tensor.shape[2] + i)];
}

/// Calls step(sample, time, time before or -1) for all samples, in the order of the steps.
template <class Step>
void each_step(const Shape& y, const Attrs& attrs, const Step& step) {
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t i = 0; i < y[1]; ++i) {
      const int64_t t = attrs.flag("reverse") ? y[1] - 1 - i : i;
      step(n, t, i == 0 ? -1 : attrs.flag("reverse") ? t + 1 : t - 1);
    }
}

/// The part of gate g of unit u that comes from the output before.
double of_output(const Inputs& in, const Tensor64& y, int64_t n, int64_t before, int64_t row) {
  double sum = 0;
  for (int64_t k = 0; before >= 0 && k < y.shape[2]; ++k) sum += at(in[1], {row, k}) * at(y, {n, before, k});
  return sum;
}

/// The outputs and states of an LSTM, step by step, from the formulas of cells.h.
Outputs lstm(const Inputs& in, const Attrs& attrs) {
  const int64_t h = in[1].shape[1];
  const Shape shape = {in[0].shape[0], in[0].shape[1], h};
  Outputs out = {zeros(shape), zeros(shape), zeros({shape[0], shape[1], 4 * h})};
  each_step(shape, attrs, [&](int64_t n, int64_t t, int64_t before) {
    for (int64_t u = 0; u < h; ++u) {
      double gates[4];
      for (int64_t g = 0; g < 4; ++g) {
        const double x = at(in[0], {n, t, g * h + u}) + of_output(in, out[0], n, before, g * h + u);
        gates[g] = g == 2 ? std::tanh(x) : cell_gate(x);
        cell_place(out[2], n, t, g * h + u) = gates[g];
      }
      const double c = gates[1] * (before >= 0 ? at(out[1], {n, before, u}) : 0) + gates[0] * gates[2];
      cell_place(out[1], n, t, u) = c;
      cell_place(out[0], n, t, u) = gates[3] * std::tanh(c);
    }
  });
  return out;
}

/// The outputs of a GRU, step by step, from the formulas of cells.h.
Outputs gru(const Inputs& in, const Attrs& attrs) {
  const int64_t h = in[1].shape[1];
  const Shape shape = {in[0].shape[0], in[0].shape[1], h};
  Outputs out = {zeros(shape), zeros({shape[0], shape[1], 4 * h})};
  each_step(shape, attrs, [&](int64_t n, int64_t t, int64_t before) {
    for (int64_t u = 0; u < h; ++u) {
      const auto x = [&](int64_t g) { return at(in[0], {n, t, g * h + u}); };
      const auto wh = [&](int64_t g) { return of_output(in, out[0], n, before, g * h + u); };
      const double r = cell_gate(x(0) + wh(0)), z = cell_gate(x(1) + wh(1)), q = wh(2) + at(in[2], {u});
      const double fresh = std::tanh(x(2) + r * q), kept[4] = {r, z, fresh, q};
      for (int64_t k = 0; k < 4; ++k) cell_place(out[1], n, t, k * h + u) = kept[k];
      cell_place(out[0], n, t, u) = (1 - z) * fresh + z * (before >= 0 ? at(out[0], {n, before, u}) : 0);
    }
  });
  return out;
}

Attrs reversed() { return {{"reverse", true}}; }

}  // namespace

extern const OpCases recurrent_cases = {
    .rows = {{"lstm", {{{4, 5, 12}}, {{12, 3}}}, {}, {{4, 5, 3}, {4, 5, 3}, {4, 5, 12}}, 5e-6},
             {"lstm", {{{2, 3, 28}}, {{28, 7}}}, reversed(), {{2, 3, 7}, {2, 3, 7}, {2, 3, 28}}, 5e-6},
             {"lstm", {{{2, 1, 4}}, {{4, 1}}}, {}, {{2, 1, 1}, {2, 1, 1}, {2, 1, 4}}, 5e-6},
             {"gru", {{{4, 5, 9}}, {{9, 3}}, {{3}}}, {}, {{4, 5, 3}, {4, 5, 12}}, 5e-6},
             {"gru", {{{2, 3, 21}}, {{21, 7}}, {{7}}}, reversed(), {{2, 3, 7}, {2, 3, 28}}, 5e-6},
             {"gru", {{{2, 1, 3}}, {{3, 1}}, {{1}}}, {}, {{2, 1, 1}, {2, 1, 4}}, 5e-6}},
    .references = {{"lstm", lstm}, {"gru", gru}},
    .rules = {{{"lstm", {{{2, 3, 16}}, {{16, 4}}}}, "abg,gh->abh,abh,abg", "bgh", {{2, 3, 4}, {2, 3, 4}, {2, 3, 16}}},
              {{"gru", {{{2, 3, 12}}, {{12, 4}}, {{4}}}}, "abg,gh,h->abh,abk", "bghk", {{2, 3, 4}, {2, 3, 16}}}},
    .gradients = {{{"lstm", {{{2, 3, 16}}, {{16, 4}}}},
                   {"lstm_grad abh,abh,abh,abg,gh->abg,gh sums h sums ab"},
                   "dw sums over samples and steps; only samples are ever cut",
                   "bh"},
                  {{"gru", {{{2, 3, 12}}, {{12, 4}}, {{4}}}},
                   {"gru_grad abh,abh,abk,gh->abg,gh,h sums hk sums abk sums abgk"},
                   "dw and db sum over samples and steps; only samples are ever cut",
                   "bghk"}},
    .shape_errors = {{{"lstm", {{{2, 16}}, {{16, 4}}}}, "lstm expects gates [n, t, 4 units], but got [2, 16]"},
                     {{"gru", {{{2, 3, 12}}, {{12, 5}}, {{4}}}},
                      "gru: the recurrent weight is [12, 5], expected [12, 4]"}},
    .layers = {{"lstm", ", units: 5", {8, 4, 5}, false, {4, 3}},
               {"lstm", ", units: 5, reverse: true, bias: false", {8, 4, 5}, false, {4, 3}},
               {"gru", ", units: 5", {8, 4, 5}, false, {4, 3}},
               {"gru", ", units: 5, layers: 3, dropout: 0.2", {8, 4, 5}, false, {4, 3}}},
};

}  // namespace trainctl
