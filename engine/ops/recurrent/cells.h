// The cells of LSTM and GRU as in PyTorch, for CPUs and GPUs. gx[g] is a gate's part of the input (with the biases),
// wh[g] its part of the last output, W h.
//
//   lstm   i, f, o = sigmoid, g = tanh of gx + wh;  c = f c + i g;  h = o tanh(c)               gates i, f, g, o
//   gru    r, z = sigmoid(gx + wh);  q = wh + b;  n = tanh(gx + r q);  h = (1 - z) n + z h        gates r, z, n
#pragma once

#include <math.h>

#include "engine/ops/host_device.h"

namespace trainctl {

TRAINCTL_HOST_DEVICE inline float cell_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// `kept`: numbers that each step and unit keeps for the backward pass. `state`: c of an LSTM.
struct LstmCell {
  static constexpr int kGates = 4, kKept = 4;
  static constexpr bool kHasState = true;

  TRAINCTL_HOST_DEVICE static float forward(const float* gx, const float* wh, float, float, float& state, float* kept) {
    const float i = cell_sigmoid(gx[0] + wh[0]), f = cell_sigmoid(gx[1] + wh[1]);
    const float g = tanhf(gx[2] + wh[2]), o = cell_sigmoid(gx[3] + wh[3]);
    state = f * state + i * g;
    kept[0] = i, kept[1] = f, kept[2] = g, kept[3] = o;
    return o * tanhf(state);
  }
  /// `dstate`: the gradient of the state after the step, then of the one before. dwh: of wh. Returns the gradient of
  /// the last output in addition to the path through W.
  TRAINCTL_HOST_DEVICE static float backward(float dh, float& dstate, float state, float state_before, float,
                                             const float* kept, float* dgx, float* dwh) {
    const float i = kept[0], f = kept[1], g = kept[2], o = kept[3], t = tanhf(state);
    const float dc = dstate + dh * o * (1.0f - t * t);
    dgx[0] = dc * g * i * (1.0f - i);
    dgx[1] = dc * state_before * f * (1.0f - f);
    dgx[2] = dc * i * (1.0f - g * g);
    dgx[3] = dh * t * o * (1.0f - o);
    for (int k = 0; k < kGates; ++k) dwh[k] = dgx[k];
    dstate = dc * f;
    return 0.0f;
  }
};

struct GruCell {
  static constexpr int kGates = 3, kKept = 4;  ///< r, z, n, q
  static constexpr bool kHasState = false;

  TRAINCTL_HOST_DEVICE static float forward(const float* gx, const float* wh, float bias, float h, float&,
                                            float* kept) {
    const float r = cell_sigmoid(gx[0] + wh[0]), z = cell_sigmoid(gx[1] + wh[1]), q = wh[2] + bias;
    const float n = tanhf(gx[2] + r * q);
    kept[0] = r, kept[1] = z, kept[2] = n, kept[3] = q;
    return (1.0f - z) * n + z * h;
  }
  TRAINCTL_HOST_DEVICE static float backward(float dh, float&, float, float, float h_before, const float* kept,
                                             float* dgx, float* dwh) {
    const float r = kept[0], z = kept[1], n = kept[2], q = kept[3];
    dgx[2] = dh * (1.0f - z) * (1.0f - n * n);
    dgx[1] = dh * (h_before - n) * z * (1.0f - z);
    dgx[0] = dgx[2] * q * r * (1.0f - r);
    dwh[0] = dgx[0], dwh[1] = dgx[1], dwh[2] = dgx[2] * r;
    return dh * z;
  }
};

/// n samples of t steps with h units.
struct RecurrentSize {
  int64_t n = 0, t = 0, h = 0;
};

}  // namespace trainctl
