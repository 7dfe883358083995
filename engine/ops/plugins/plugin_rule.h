// The sharding rule of a plugin's op, checked against the shapes of its operands.
#pragma once

#include <map>
#include <string>

#include "engine/ops/op_def.h"
#include "engine/ops/plugins/plugin_op.h"

namespace trainctl {

/// The rule for these operands. Throws ShapeError that names the tensor and the dim which do not fit.
RuleText plugin_rule(const PluginOp& op, Infos inputs, Infos outputs, const Attrs& attrs);

/// Sizes of the letters of a rule that plugin_rule has returned.
std::map<char, int64_t> plugin_letter_sizes(const RuleText& rule, Infos inputs, Infos outputs);

/// "input x", "parameter weight", "output 1".
std::string plugin_operand(const PluginOp& op, size_t operand);

}  // namespace trainctl
