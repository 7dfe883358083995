// dataset.noise_steps: samples for diffusion models (Ho et al. 2020, Denoising Diffusion Probabilistic Models). A step
// t in [0, noise_steps) and noise e from a normal distribution are drawn per sample and pass, and the first field
// becomes
//
//   sqrt(a(t)) x + sqrt(1 - a(t)) e       a(t) = product of 1 - beta(0), .., 1 - beta(t)
//
// with betas that rise linearly (noise_betas), or a(t) of the cosine schedule (Nichol and Dhariwal 2021). The label is
// e, the field `timestep` has t, i32, and the former label is the field `class`, if it is a class.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// sqrt(a(t)) and sqrt(1 - a(t)) of each step.
struct NoiseLevels {
  std::vector<float> signal, noise;
  explicit NoiseLevels(const DatasetSpec& spec);
};

/// Returns the fields of the noised set, given those of the set that it wraps. Throws SpecError (dataset.noise_steps)
/// if the first field does not contain floats.
DataShapes noised_shapes(const DataShapes& inner);
std::unique_ptr<Dataset> add_noise(std::unique_ptr<Dataset> inner, const DatasetSpec& spec);

}  // namespace trainctl
