// Tests every family in all_ops.def: it has its kernels on each device, an example, and everything that the tests need,
// all in its own folder.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/ops/kernel.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/optimizer_def.h"
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/simulate.h"

namespace fs = std::filesystem;

namespace trainctl {
namespace {

using Names = std::set<std::string>;

template <class Rows, class Name>
Names names_of(const Rows& rows, Name name) {
  Names names;
  for (const auto& row : rows) names.insert(name(row));
  return names;
}

std::string cases_file(const FamilyCases& family) {
  const std::string folder = family.folder;
  return "engine/ops/" + folder + "/" + folder + "_cases.cpp";
}

/// The text of the family's file of CUDA kernels, which a build without CUDA does not compile; empty if there is no
/// such file.
std::string cuda_source(const std::string& folder) {
  for (const char* extension : {".cu", ".cpp"}) {
    const fs::path file = fs::path(TRAINCTL_SOURCE_DIR) / "engine/ops" / folder / (folder + "_cuda" + extension);
    std::ifstream in(file);
    std::stringstream text;
    if (in && text << in.rdbuf()) return text.str();
  }
  return "";
}

/// The ops whose kernels the rows run.
Names ops_run_by(const std::vector<OpCase>& rows) {
  Names run;
  for (const OpCase& row : rows)
    for (const Node& node : build_case(row, true).graph.nodes) run.insert(node.op);
  return run;
}

/// The kernels of the family's ops, followed by the family's own kernels.
std::vector<const KernelDef*> kernels_of(const OpFamily& family) {
  std::vector<const KernelDef*> kernels;
  for (const OpDef* op : family.ops)
    if (!op->collective) kernels.push_back(&op->kernel);
  kernels.insert(kernels.end(), family.kernels.begin(), family.kernels.end());
  return kernels;
}

unsigned steps_of(const Epilogue& e) {
  const auto of = [](bool there, EpilogueStep step) { return there ? bits(step) : 0u; };
  return of(e.bias, EpilogueStep::bias) | of(e.residual, EpilogueStep::residual) |
         of(e.activation != Activation::none, EpilogueStep::activation) |
         of(e.slope != Activation::none, EpilogueStep::slope) | of(e.bias_grad, EpilogueStep::bias_grad) |
         of(e.parameter_grads, EpilogueStep::parameter_grads) | of(e.descend, EpilogueStep::descend);
}

}  // namespace

TEST_CASE("every folder of engine/ops with cases is a line of all_ops.def") {
  Names listed, there;
  for (const FamilyCases& family : all_cases()) listed.insert(family.folder);
  for (const auto& entry : fs::directory_iterator(fs::path(TRAINCTL_SOURCE_DIR) / "engine/ops")) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / (name + "_cases.cpp"))) there.insert(name);
  }
  CHECK(listed == there);
}

TEST_CASE("every op has a row, a reference, a rule and a gradient in its family's cases") {
  Names run_by_any, emitted;
  for (const FamilyCases& family : all_cases()) {
    run_by_any.merge(ops_run_by(family.cases.rows));
    for (const GradientCase& row : family.cases.gradients)
      for (const std::string& node : row.nodes) emitted.insert(node.substr(0, node.find(' ')));
  }
  for (const FamilyCases& family : all_cases()) {
    const OpCases& cases = family.cases;
    const Names run = ops_run_by(cases.rows);
    const Names references = names_of(cases.references, [](const Reference& r) { return r.op; });
    const Names rules = names_of(cases.rules, [](const RuleCase& r) { return r.given.op; });
    const Names gradients = names_of(cases.gradients, [](const GradientCase& r) { return r.given.op; });
    INFO("in " << cases_file(family));
    for (const OpDef* op : family.family.ops) {
      const std::string name = op->name;
      CAPTURE(name);
      // Ops that occur only in backward passes follow the rule of the tensors whose gradients they compute.
      const bool backward_alone = op->backward == nullptr && emitted.contains(name);
      if (!op->collective) CHECK_MESSAGE((backward_alone ? run_by_any : run).contains(name), "no row runs the op");
      if (op->backward != nullptr) CHECK_MESSAGE(gradients.contains(name), "no gradient row of the op");
      if (backward_alone) continue;
      CHECK_MESSAGE((op->rule != nullptr), "no rule of its own, and no gradient row has it in a backward pass");
      CHECK_MESSAGE(rules.contains(name), "no rule row of the op");
      if (!op->collective) CHECK_MESSAGE(references.contains(name), "no reference of the op");
    }
  }
}

TEST_CASE("every kernel without an op has a call and a reference in its family's cases") {
  for (const FamilyCases& family : all_cases()) {
    const Names called = names_of(family.cases.kernels, [](const KernelCase& r) { return r.kernel; });
    const Names references =
        names_of(family.cases.kernel_references, [](const KernelReference& r) { return r.kernel; });
    INFO("in " << cases_file(family));
    CHECK(called == references);
    for (const KernelDef* kernel : family.family.kernels) CHECK_MESSAGE(called.contains(kernel->name), kernel->name);
  }
}

TEST_CASE("every step that a kernel may be fused with has a row") {
  for (const FamilyCases& family : all_cases()) {
    INFO("in " << cases_file(family));
    for (const KernelDef* kernel : kernels_of(family.family)) {
      CAPTURE(std::string(kernel->name));
      unsigned tested = 0;
      for (const OpCase& row : family.cases.rows)
        if (row.op == kernel->name) tested |= steps_of(epilogue_of(row.attrs));
      for (const KernelCase& row : family.cases.kernels)
        if (row.kernel == kernel->name) tested |= steps_of(epilogue_of(row.attrs));
      if (kernel->takes_step(EpilogueStep::relu)) {
        CHECK((tested & bits(EpilogueStep::activation)) != 0);
        tested ^= bits(EpilogueStep::activation, EpilogueStep::relu);
      }
      CHECK(tested == kernel->takes);
    }
  }
}

TEST_CASE("the epilogue steps that kernels accept are exactly those that other kernels can become") {
  unsigned taken = 0,
           offered = bits(EpilogueStep::descend, EpilogueStep::relu);  // an optimizer's step; one of the activations
  for (const KernelDef* kernel : all_kernels()) {
    taken |= kernel->takes;
    if (kernel->as_epilogue != nullptr) offered |= bits(kernel->as_epilogue({}).step);
  }
  CHECK(taken == offered);
}

TEST_CASE("every layer has a row in its family's cases, and every optimizer's kernel is its family's") {
  for (const FamilyCases& family : all_cases()) {
    INFO("in " << cases_file(family));
    const Names layers = names_of(family.family.layers, [](const LayerDef* l) { return l->name; });
    CHECK(names_of(family.cases.layers, [](const LayerCase& r) { return r.type; }) == layers);
    for (const OptimizerDef* optimizer : family.family.optimizers) {
      CAPTURE(std::string(optimizer->name));
      const auto kernels = family.family.kernels;
      CHECK(std::find(kernels.begin(), kernels.end(), optimizer->kernel) != kernels.end());
    }
  }
}

TEST_CASE("the cases of a family are about its own ops and kernels") {
  for (const FamilyCases& family : all_cases()) {
    INFO("in " << cases_file(family));
    Names ops, kernels;
    for (const OpDef* op : family.family.ops) ops.insert(op->name);
    for (const KernelDef* kernel : kernels_of(family.family)) kernels.insert(kernel->name);
    for (const OpCase& row : family.cases.rows) CHECK_MESSAGE(ops.contains(row.op), row.op);
    for (const Reference& row : family.cases.references) CHECK_MESSAGE(ops.contains(row.op), row.op);
    for (const RuleCase& row : family.cases.rules) CHECK_MESSAGE(ops.contains(row.given.op), row.given.op);
    for (const GradientCase& row : family.cases.gradients) CHECK_MESSAGE(ops.contains(row.given.op), row.given.op);
    for (const ShapeErrorCase& row : family.cases.shape_errors) CHECK_MESSAGE(ops.contains(row.given.op), row.given.op);
    for (const KernelCase& row : family.cases.kernels) CHECK_MESSAGE(kernels.contains(row.kernel), row.kernel);
  }
}

TEST_CASE("every kernel runs on a CPU and on a GPU, and has an example with a description") {
  for (const FamilyCases& family : all_cases()) {
    const Names exempt = names_of(family.cases.without_cuda, [](const Exemption& e) { return e.kernel; });
    const std::string cuda = cuda_source(family.folder);
    CAPTURE(std::string(family.folder));
    Names kernels;
    for (const KernelDef* kernel : kernels_of(family.family)) {
      const std::string name = kernel->name;
      CAPTURE(name);
      kernels.insert(name);
      CHECK_MESSAGE(find_cpu_kernel(name) != nullptr, "no CPU kernel in the family's <folder>_cpu.cpp");
      const bool has_cuda = cuda.find("{\"" + name + "\",") != std::string::npos;
      CHECK_MESSAGE(has_cuda != exempt.contains(name),
                    "a kernel is in the family's <folder>_cuda.cu, or in OpCases::without_cuda with the reason");
      REQUIRE_MESSAGE((kernel->example != nullptr), "no KernelDef::example");
      CHECK_MESSAGE(!std::string(kernel->example().what).empty(), "no KernelExample::what");
    }
    for (const auto* exemptions : {&family.cases.without_cuda, &family.cases.allocating}) {
      for (const Exemption& e : *exemptions) {
        CHECK_MESSAGE(kernels.contains(e.kernel), e.kernel);
        CHECK_MESSAGE(!std::string(e.why).empty(), e.kernel);
      }
    }
  }
}

}  // namespace trainctl
