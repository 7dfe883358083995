// Names of other tools: every entry leads to something that exists.
#include "engine/spec/foreign_names.h"

#include <doctest/doctest.h>

#include <map>

#include "engine/base/entry_types.h"
#include "engine/spec/fields.h"
#include "engine/spec/yaml_tree.h"

using namespace trainctl;

namespace {

std::vector<std::string> foreign_words_of(std::string_view names) {
  std::vector<std::string> words;
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    words.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return words;
}

bool is_known_type(const std::vector<EntryType>& types, std::string_view name) {
  return find_type(types, name) != nullptr;
}

bool is_type_of_kind(NameKind kind, std::string_view name) {
  switch (kind) {
    case NameKind::layer:
      return is_known_type(layer_types(), name);
    case NameKind::loss:
      return is_known_type(loss_types(), name);
    case NameKind::optimizer:
      return is_known_type(optimizer_types(), name);
    case NameKind::metric:
      return is_known_type(metric_types(), name);
    case NameKind::transform:
      return is_known_type(transform_types(), name);
    default:
      return false;
  }
}

bool is_layer_field(std::string_view name) {
  for (const Field& field : common_layer_fields())
    if (field.name == name) return true;
  for (const EntryType& type : layer_types())
    if (type.has_field(name)) return true;
  return false;
}

bool foreign_target_exists(const ForeignName& name) {
  switch (name.kind) {
    case NameKind::field:
      for (const FieldAt& field : fields_called(name.ours))
        if (field.path == name.ours) return true;
      return false;
    case NameKind::layer:
      return is_known_type(layer_types(), name.ours);
    case NameKind::layer_field:
      return is_layer_field(name.ours);
    case NameKind::loss:
      return is_known_type(loss_types(), name.ours);
    case NameKind::optimizer:
      return is_known_type(optimizer_types(), name.ours);
    case NameKind::metric:
      return is_known_type(metric_types(), name.ours);
    case NameKind::transform:
      return is_known_type(transform_types(), name.ours);
    case NameKind::dataset:
      for (const FieldAt& field : fields_called("dataset.type"))
        for (const std::string& choice : field.field->choices)
          if (choice == name.ours) return true;
      return false;
    case NameKind::value:
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("every name of another tool leads to a field or a type that exists, or says that there is none") {
  for (const ForeignName& name : foreign_names()) {
    CAPTURE(name.names);
    if (name.ours.empty()) {
      CHECK_FALSE(name.note.empty());
      for (const std::string& word : foreign_words_of(name.names))
        CHECK_MESSAGE(!is_type_of_kind(name.kind, word), word);
      continue;
    }
    CHECK_MESSAGE(foreign_target_exists(name), name.ours);
    CHECK_FALSE(name.example.empty());
  }
}

TEST_CASE("a name of another tool is in the table once per kind") {
  std::map<std::pair<NameKind, std::string>, int> seen;
  for (const ForeignName& name : foreign_names())
    for (const std::string& word : foreign_words_of(name.names)) {
      CAPTURE(word);
      CHECK(++seen[{name.kind, word}] == 1);
      CHECK(find_foreign(name.kind, word) == &name);
    }
}

TEST_CASE("case, underscores and modules do not matter") {
  for (const char* word : {"nn.Linear", "linear", "torch.nn.Linear", "LINEAR", "fully-connected"})
    CHECK(find_foreign(NameKind::layer, word)->ours == "dense");
  CHECK(foreign_hint(NameKind::field, "batch_size") == "write dataset: {batch: 64}");
  CHECK(foreign_hint(NameKind::field, "no_such_name").empty());
}

TEST_CASE("a name of our own in another spelling leads to it") {
  const std::vector<std::string> names = {"dropout", "batch_norm", "one_cycle", "huber", "conv1d", "max_pool2d"};
  CHECK(same_name("nn.Dropout", names) == "dropout");
  CHECK(same_name("BatchNorm", names) == "batch_norm");
  CHECK(same_name("torch.optim.lr_scheduler.OneCycleLR", names) == "one_cycle");
  CHECK(same_name("HuberLoss", names) == "huber");
  CHECK(same_name("nn.Conv1d", names) == "conv1d");
  CHECK(same_name("nn.MaxPool2d", names) == "max_pool2d");
  CHECK(same_name("Dropout3", names).empty());
  CHECK(same_name("", names).empty());
}

TEST_CASE("the example of a layer, loss or optimizer of another tool has fields that exist") {
  for (const ForeignName& name : foreign_names()) {
    const bool is_layer = name.kind == NameKind::layer;
    if ((!is_layer && name.kind != NameKind::loss && name.kind != NameKind::optimizer) || name.example.empty())
      continue;
    CAPTURE(name.example);
    const YamlNode root = read_yaml(name.example, "example");
    const YamlNode& node = is_layer ? root : root.entries.at(0).value;
    const std::vector<EntryType>& types = is_layer                      ? layer_types()
                                          : name.kind == NameKind::loss ? loss_types()
                                                                        : optimizer_types();
    const YamlNode* type = node.is_map() ? node.find("type") : &node;
    REQUIRE(type != nullptr);
    const EntryType* found = find_type(types, type->text);
    REQUIRE(found != nullptr);
    for (const YamlNode::Entry& entry : node.entries) {
      const bool is_common = is_layer ? is_layer_field(entry.key) : fields_called(entry.key).size() > 0;
      CHECK_MESSAGE((entry.key == "type" || found->has_field(entry.key) || is_common), entry.key);
    }
  }
}
