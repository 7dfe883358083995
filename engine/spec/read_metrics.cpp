// Reads metrics.
#include "engine/spec/read_metrics.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

/// `top5` for `{type: top_k, k: 5}`.
YamlNode written_out(const YamlNode& node) {
  constexpr std::string_view kTop = "top";
  if (!node.is_scalar() || !node.text.starts_with(kTop) || node.text.size() == kTop.size()) return node;
  const std::string k = node.text.substr(kTop.size() + (node.text[kTop.size()] == '_' ? 1 : 0));
  if (k.empty() || k.size() > 6 || k.find_first_not_of("0123456789") != std::string::npos) return node;
  YamlNode type = node, number = node, whole;
  type.text = "top_k";
  number.text = k;
  whole.kind = YamlNode::Kind::map;
  whole.pos = node.pos;
  whole.entries = {{"type", node.pos, type}, {"k", node.pos, number}};
  return whole;
}

void read_metric(const YamlNode& node, const std::string& path, JobSpec& job, Problems& problems) {
  const YamlNode* named = node.is_map() ? node.find("type") : &node;
  if (named == nullptr || !named->is_scalar()) {
    problems.add(node.pos, path, "must be a metric, not " + describe(node), "e.g. accuracy or {type: top_k, k: 5}");
    return;
  }
  const EntryType* type = find_type(metric_types(), named->text);
  if (type == nullptr) {
    std::string guess = foreign_hint(NameKind::metric, named->text);
    if (const std::string same = same_name(named->text, names_of(metric_types())); guess.empty() && !same.empty())
      guess = "write " + same;
    if (guess.empty()) guess = did_you_mean(named->text, names_of(metric_types()));
    problems.add(named->pos, node.is_map() ? at_key(path, "type") : path, "unknown metric '" + named->text + "'",
                 guess.empty() ? "one of " + join(names_of(metric_types())) : guess);
    return;
  }
  YamlNode fields = node;
  if (!node.is_map()) {
    fields = {};
    fields.pos = node.pos;
  }
  std::vector<std::string> names = names_of(type->fields);
  names.emplace_back("type");
  refuse_unknown_keys(fields, names, type->name, path, problems);
  job.metrics.push_back({type->name, read_attrs(fields, type->fields, type->name, path, problems), path});
}

}  // namespace

void read_metrics(const YamlNode& node, const std::string& path, JobSpec& job, Problems& problems) {
  const bool is_list = node.is_list();
  for (size_t i = 0; i < (is_list ? node.items.size() : 1); ++i)
    read_metric(written_out(is_list ? node.items[i] : node), is_list ? at_index(path, i) : path, job, problems);
  if (job.metrics.size() > kMaxMetrics)
    problems.add(node.pos, path, "a job has at most " + std::to_string(kMaxMetrics) + " metrics");
}

void add_metrics_of_validation(JobSpec& job, Problems& problems) {
  if (!job.validation || !problems.empty()) return;
  for (size_t i = 0; i < job.validation->metrics.size(); ++i) {
    std::string& name = job.validation->metrics[i];
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.text = name;
    const std::string path = at_index("validation.metrics", i);
    node.pos = job.position(path);
    node = written_out(node);
    if (node.is_map()) name = "top_" + node.find("k")->text;
    const std::vector<std::string> known = job.metric_names();
    const bool is_type = node.is_map() || find_type(metric_types(), name) != nullptr;
    if (is_type && std::find(known.begin(), known.end(), name) == known.end()) read_metric(node, path, job, problems);
  }
}

}  // namespace trainctl
