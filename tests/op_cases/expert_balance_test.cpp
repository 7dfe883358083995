// Tests of the states of a router: the load of a step, and the bias that follows from the load of the previous step.
#include <doctest/doctest.h>

#include <vector>

#include "engine/ops/kernel.h"
#include "engine/ops/moe/expert_load.h"

namespace trainctl {
namespace {

TensorArg balance_operand(std::vector<float>& values) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return {.data = values.data(), .shape = shape, .global_shape = shape, .offset = {0}};
}

void run_balance(const char* kernel, std::vector<std::vector<float>*> in, std::vector<std::vector<float>*> out,
                 int micro_batch, Attrs attrs = {}) {
  KernelCall call{.attrs = std::move(attrs), .micro_batch = micro_batch};
  for (auto* values : in) call.in.push_back(balance_operand(*values));
  for (auto* values : out) call.out.push_back(balance_operand(*values));
  find_cpu_kernel(kernel)->prepare(call)();
}

}  // namespace

TEST_CASE("the load of a step is the sum over its micro-batches") {
  std::vector<float> load{1, 2, 3, 4, 5, 6, 7}, state(7, 100);
  run_balance("count_load", {&load, &state}, {}, 0);
  CHECK(state == load);
  run_balance("count_load", {&load, &state}, {}, 1);
  CHECK(state == std::vector<float>{2, 4, 6, 8, 10, 12, 14});
}

TEST_CASE("the first micro-batch of a step moves the bias of each expert towards the mean load") {
  std::vector<float> bias{1, 2, 3}, now(3), load{5, 2, 2, 9, 9, 9, 9, 9, 9};  // 3 pairs are the mean
  run_balance("balance_bias", {&bias, &load}, {&now}, 0, {{"speed", 0.25}});
  CHECK(bias == std::vector<float>{0.75F, 2.25F, 3.25F});
  CHECK(now == bias);
  run_balance("balance_bias", {&bias, &load}, {&now}, 1, {{"speed", 0.25}});
  CHECK(bias == std::vector<float>{0.75F, 2.25F, 3.25F});
  std::vector<float> equal{3, 3, 3, 0, 0, 0, 0, 0, 0}, none(9);
  run_balance("balance_bias", {&bias, &equal}, {&now}, 0, {{"speed", 0.25}});
  run_balance("balance_bias", {&bias, &none}, {&now}, 0, {{"speed", 0.25}});
  CHECK(now == std::vector<float>{0.75F, 2.25F, 3.25F});
}

TEST_CASE("what is reported of a load is relative to equal loads") {
  // The report for 4 tokens with 2 experts each, where all probabilities are 1/4.
  const ExpertReport equal = expert_report({2, 2, 2, 2, 1, 1, 1, 1, 5.5F, 0, 0}, 2);
  CHECK(equal.max_load == 1);
  CHECK(equal.min_load == 1);
  CHECK(equal.entropy == 1.375);
  CHECK(equal.balance == 1);
  CHECK(equal.dropped == 0);
  const ExpertReport all_to_two = expert_report({4, 4, 0, 0, 2, 2, 0, 0, 0, 0, 4}, 2);
  CHECK(all_to_two.max_load == 2);
  CHECK(all_to_two.min_load == 0);
  CHECK(all_to_two.balance == 2);
  CHECK(all_to_two.dropped == 0.5);
  CHECK(expert_report({0, 0, 0, 0, 0, 0, 0}, 1).max_load == 0);
}

}  // namespace trainctl
