// Adafactor; the formula is in adafactor_rule.h. Matrices keep means of squares per row and column, vectors keep those
// of each element.
#include <cmath>

#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

/// The attrs of the examples of kernels: one parameter, a matrix [kRows, kCols] that this rank has as a whole. The list
/// `parameters` is explained in placed_parameters.h: first element, key, number of dims, sizes of the part, sizes of
/// the whole, and offsets.
Attrs adafactor_example() {
  using namespace example;
  return {{"eps", 1e-7},
          {"rms_eps", 1e-3},
          {"max_update_rms", 1.0},
          {"weight_decay", 0.0},
          {"clip_norm", 0.0},
          {"first", int64_t{0}},
          {"parameters", std::vector<Ints>{{0, 0, 2, kRows, kCols, kRows, kCols, 0, 0}}}};
}

const int64_t kStates = example::kRows + example::kCols;

Attrs update_attrs(const Attrs& settings) {
  return {{"eps", settings.number("eps")},
          {"rms_eps", settings.number("rms_eps")},
          {"max_update_rms", settings.number("max_update_rms")},
          {"weight_decay", settings.number("weight_decay")}};
}

void fill_rates(const Attrs& settings, int64_t update, StepScalars& scalars) {
  const auto t = static_cast<double>(update);
  scalars.square_rate = static_cast<float>(std::pow(t, settings.number("beta2_decay")));
  scalars.relative_rate = static_cast<float>(1 / std::sqrt(t));
}

/// The states of a parameter [.., rows, columns], with their shapes: means of squares over columns, and over rows.
std::vector<std::pair<std::string, Shape>> factors(const Shape& parameter) {
  Shape rows(parameter.begin(), parameter.end() - 1), cols(parameter.begin(), parameter.end() - 2);
  cols.push_back(parameter.back());
  return {{"row_squares", rows}, {"column_squares", cols}};
}

/// The number of matrices [rows, columns] in a parameter [.., rows, columns].
int64_t matrices(const Shape& parameter) {
  int64_t n = 1;
  for (size_t d = 0; d + 2 < parameter.size(); ++d) n *= parameter[d];
  return n;
}

}  // namespace

extern const KernelDef adafactor_sums_kernel = {
    .name = "adafactor_sums",
    .accumulates = 1,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "sums of squares per row, column and parameter",
              .inputs = {f32(kFlat), f32(kFlat)},
              .attrs = adafactor_example(),
              .optional = optimizer_options(),
              .outputs = [](Infos, const Attrs&, DType) -> std::vector<TensorInfo> { return {{{kStates + 1}}}; }};
        },
};

/// out: states, which are updated; means, which are only written. These are floats in a tensor of i32, because a kernel
/// with updates_outputs reads its float outputs.
extern const KernelDef adafactor_states_kernel = {
    .name = "adafactor_states",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "means of squares per row and column, and their means",
                               .inputs = {f32({kStates + 1})},
                               .attrs = adafactor_example(),
                               .optional = optimizer_options(),
                               .outputs = [](Infos, const Attrs&, DType) -> std::vector<TensorInfo> {
                                 return {{{kStates}}, {{1}, DType::i32}};
                               }};
        },
};

extern const KernelDef adafactor_norms_kernel = {
    .name = "adafactor_norms",
    .accumulates = 1,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "sums of squares of the changes per parameter",
                               .inputs = {f32(kFlat), f32({kStates}), f32({1})},
                               .attrs = adafactor_example(),
                               .optional = optimizer_options(),
                               .outputs = one_number};
        },
};

/// in: gradient, (clip norm^2), sums, norms, (states, means); out: weight, (variances of a vector), (bf16 copy).
extern const KernelDef adafactor_update_kernel = {
    .name = "adafactor_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "weights from gradients, sums, norms, states and means",
              .inputs = {f32(kFlat), f32({kStates + 1}), f32({1}), f32({kStates}), f32({1})},
              .attrs = adafactor_example(),
              .optional = optimizer_options(),
              .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in.first(1), 0, dtype); }};
        },
};

namespace {

const ParameterSums kMatrixSums = {.sums = &adafactor_sums_kernel,
                                   .states_update = &adafactor_states_kernel,
                                   .norms = &adafactor_norms_kernel,
                                   .states = factors,
                                   .means = matrices};
const ParameterSums kVectorSums = {
    .sums = &adafactor_sums_kernel, .states_update = nullptr, .norms = &adafactor_norms_kernel};

std::vector<Field> adafactor_fields() {
  return {weight_decay_field(),
          number("beta2_decay", "The weight of a step's squared gradients in their running means is step^beta2_decay.")
              .defaults(-0.8)
              .below(0),
          number("eps", "Lower bound of the mean of squares; its square is the bound for each element.")
              .defaults(1.1920928955078125e-07)
              .above(0),
          number("rms_eps", "Lower bound of a parameter's root mean square, which scales the learning rate.")
              .defaults(1e-3)
              .above(0),
          number("max_update_rms", "Largest root mean square of a parameter's update before the learning rate.")
              .defaults(1.0)
              .above(0)};
}

}  // namespace

/// The optimizer of vectors and scalars.
extern const OptimizerDef adafactor_of_vectors = {
    .name = "adafactor",
    .fields = adafactor_fields(),
    .same_in_groups = {"beta2_decay"},
    .kernel = &adafactor_update_kernel,
    .kernel_attrs = update_attrs,
    .states = [](const Attrs&) -> std::vector<std::string> { return {"variance"}; },
    .sums = &kVectorSums,
    .fill_scalars = fill_rates,
};

extern const OptimizerDef adafactor_optimizer = {
    .name = "adafactor",
    .fields = adafactor_fields(),
    .same_in_groups = {"beta2_decay"},
    .kernel = &adafactor_update_kernel,
    .kernel_attrs = update_attrs,
    .states = [](const Attrs&) -> std::vector<std::string> { return {}; },
    .sums = &kMatrixSums,
    .companion = &adafactor_of_vectors,
    .suits = [](const Attrs&, const Shape& shape, bool) { return shape.size() >= 2; },
    .fill_scalars = fill_rates,
};

extern const OpFamily adafactor_family = {
    .ops = {},
    .kernels = {&adafactor_update_kernel, &adafactor_sums_kernel, &adafactor_states_kernel, &adafactor_norms_kernel},
    .optimizers = {&adafactor_optimizer}};

}  // namespace trainctl
