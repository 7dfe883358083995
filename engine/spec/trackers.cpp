// `track`: the trackers that get the numbers of a run while it trains, besides the files in the run's folder.
#include "engine/spec/trackers.h"

#include <algorithm>
#include <string_view>

#include "engine/base/text.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

constexpr std::string_view kCommand = "command";

YamlNode scalar_at(const SourcePos& pos, std::string text) {
  YamlNode node;
  node.kind = YamlNode::Kind::scalar;
  node.pos = pos;
  node.text = std::move(text);
  return node;
}

YamlNode mapping_at(const SourcePos& pos) {
  YamlNode node;
  node.kind = YamlNode::Kind::map;
  node.pos = pos;
  return node;
}

/// Returns the command in a text such as 'command: ./push.py'; nullopt for any other text.
std::optional<std::string> command_in(const std::string& text) {
  if (!text.starts_with(std::string(kCommand) + ":")) return {};
  const size_t begin = text.find_first_not_of(' ', kCommand.size() + 1);
  return begin == std::string::npos ? "" : text.substr(begin);
}

/// True for a text that looks like a program rather than the name of a tracker.
bool is_like_program(const std::string& text) { return text.find_first_of("/. ") != std::string::npos; }

}  // namespace

const Section& tracker_section() {
  using T = TrackerSpec;
  static const Section section{
      "track",
      "A tracker: its name, 'command: PROGRAM', or a mapping of these fields.",
      {
          field<&T::type>(
              "type",
              "tensorboard: event files, which every run writes; mlflow, wandb: with their Python packages; "
              "command: a program that reads the lines of metrics.jsonl from its standard input.")
              .one_of({"tensorboard", "mlflow", "wandb", std::string(kCommand)})
              .required(),
          field<&T::to>("to",
                        "mlflow: the folder of a file store, relative to the job file, or the URI of a server; "
                        "$MLFLOW_TRACKING_URI if omitted. wandb: the project; the job's name if omitted.")
              .for_type({"mlflow", "wandb"}),
          field<&T::command>("command", "A shell command, which runs in the folder of the job file.")
              .required()
              .for_type({std::string(kCommand)}),
          field<&T::required>("required",
                              "true: a tracker that cannot start is an error before the run starts; false: a warning.")
              .for_type({"mlflow", "wandb", std::string(kCommand)}),
      }};
  return section;
}

bool is_tracking_folder(const std::string& to) {
  return !to.empty() && to.find(':') == std::string::npos && to != "databricks";
}

std::optional<YamlNode> tracker_fields(const YamlNode& node, const std::string& path, Problems& problems) {
  if (node.is_map()) {
    const YamlNode* command = node.find(std::string(kCommand));
    YamlNode fields = node;
    if (command != nullptr && node.find("type") == nullptr)
      fields.entries.insert(fields.entries.begin(), {"type", node.pos, scalar_at(node.pos, std::string(kCommand))});
    return fields;
  }
  if (!node.is_scalar()) {
    problems.add(node.pos, path, "must be a tracker, not " + describe(node), "e.g. mlflow or 'command: ./push.py'");
    return {};
  }
  YamlNode fields = mapping_at(node.pos);
  const std::optional<std::string> command = command_in(node.text);
  const std::vector<std::string>& known = tracker_section().fields.front().choices;
  if (command) {
    fields.entries = {{"type", node.pos, scalar_at(node.pos, std::string(kCommand))},
                      {std::string(kCommand), node.pos, scalar_at(node.pos, *command)}};
  } else if (std::find(known.begin(), known.end(), node.text) != known.end()) {
    fields.entries = {{"type", node.pos, node}};
  } else {
    const std::string near = did_you_mean(node.text, known);
    problems.add(node.pos, path, "unknown tracker '" + node.text + "'",
                 is_like_program(node.text) ? "write 'command: " + node.text + "'"
                 : near.empty()             ? "one of " + join(known) + "; any other is 'command: PROGRAM'"
                                            : near);
    return {};
  }
  return fields;
}

}  // namespace trainctl
