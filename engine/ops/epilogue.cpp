// An epilogue as attrs: bias, residual, keep_input, bias_grad, parameter_grads and descend are flags; activation and
// activation_grad are "relu" or "gelu"; `approximate`, like gelu's own attr, selects the gelu.
#include "engine/ops/epilogue.h"

#include <string>

#include "engine/base/error.h"

namespace trainctl {
namespace {

Activation activation_named(const Attrs& attrs, const char* which) {
  const std::string name = attrs.text(which);
  if (name.empty()) return Activation::none;
  if (name == "relu") return Activation::relu;
  check(name == "gelu", std::string("the attr ") + which + " must be relu or gelu, not " + name);
  return gelu_of(attrs);
}

void set_flag(Attrs& attrs, const char* name, bool value) {
  if (value) {
    attrs.set(name, true);
  } else {
    attrs.erase(name);
  }
}

void set_activation(Attrs& attrs, const char* name, Activation activation) {
  if (activation == Activation::none) return attrs.erase(name);
  attrs.set(name, std::string(activation == Activation::relu ? "relu" : "gelu"));
  if (activation != Activation::relu)
    attrs.set("approximate", std::string(activation == Activation::gelu_tanh ? "tanh" : "none"));
}

}  // namespace

Activation gelu_of(const Attrs& attrs) {
  return attrs.text("approximate", "none") == "tanh" ? Activation::gelu_tanh : Activation::gelu;
}

Epilogue epilogue_of(const Attrs& attrs) {
  Epilogue epilogue;
  for (const auto& [name, value] : attrs) {  // few, so this takes less than to look for each
    if (name == "bias") epilogue.bias = attrs.flag(name);
    if (name == "residual") epilogue.residual = attrs.flag(name);
    if (name == "activation") epilogue.activation = activation_named(attrs, "activation");
    if (name == "keep_input") epilogue.keep_input = attrs.flag(name);
    if (name == "activation_grad") epilogue.slope = activation_named(attrs, "activation_grad");
    if (name == "bias_grad") epilogue.bias_grad = attrs.flag(name);
    if (name == "parameter_grads") epilogue.parameter_grads = attrs.flag(name);
    if (name == "descend") epilogue.descend = attrs.flag(name);
  }
  return epilogue;
}

void set_epilogue(Attrs& attrs, const Epilogue& epilogue) {
  set_flag(attrs, "bias", epilogue.bias);
  set_flag(attrs, "residual", epilogue.residual);
  set_activation(attrs, "activation", epilogue.activation);
  set_flag(attrs, "keep_input", epilogue.keep_input);
  set_activation(attrs, "activation_grad", epilogue.slope);
  set_flag(attrs, "bias_grad", epilogue.bias_grad);
  set_flag(attrs, "parameter_grads", epilogue.parameter_grads);
  set_flag(attrs, "descend", epilogue.descend);
}

Attrs epilogue_attrs(unsigned steps) {
  const auto takes = [steps](EpilogueStep step) { return (steps & bits(step)) != 0; };
  Attrs attrs;
  if (takes(EpilogueStep::bias)) attrs.set("bias", true);
  if (takes(EpilogueStep::residual)) attrs.set("residual", true);
  if (takes(EpilogueStep::relu)) attrs.set("activation", std::string("relu"));
  if (takes(EpilogueStep::activation)) {
    attrs.set("activation", std::string("relu"));
    attrs.set("keep_input", true);
  }
  if (takes(EpilogueStep::slope)) attrs.set("activation_grad", std::string("relu"));
  if (takes(EpilogueStep::bias_grad)) attrs.set("bias_grad", true);
  if (takes(EpilogueStep::parameter_grads)) attrs.set("parameter_grads", true);
  if (takes(EpilogueStep::descend)) attrs.set("descend", true);
  return attrs;
}

std::vector<std::string> epilogue_words(std::string_view attr) {
  if (attr == "activation" || attr == "activation_grad") return {"relu", "gelu"};
  return {};
}

}  // namespace trainctl
