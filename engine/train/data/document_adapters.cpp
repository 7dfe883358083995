// The adapters of documents: with adapters.names, each document has a field with the name or number of its adapter.
#include "engine/train/data/document_adapters.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {

int32_t adapter_of_document(const DatasetSpec& spec, const DocumentIndex& index, int64_t document) {
  const std::vector<std::string>& names = spec.adapter_names;
  const auto fail = [&](const std::string& message, const std::string& hint) {
    throw SpecError({}, "adapters.field", index.where(document) + ": " + message, hint);
  };
  const std::string& field = spec.adapter_field;
  if (!index.is_json(document))
    fail("a text file has no field '" + field + "'",
         "use JSON Lines: a line {\"text\": ..., \"" + field + "\": \"" + names.front() + "\"} for each text");
  const auto row = nlohmann::json::parse(index.read(document), nullptr, false);
  if (!row.is_object()) fail("expected a JSON object", "each line is an object with the field '" + field + "'");
  if (!row.contains(field)) {
    std::vector<std::string> known;
    for (const auto& [key, value] : row.items()) known.push_back(key);
    fail("has no field '" + field + "'", "the document has " + join(known));
  }
  const nlohmann::json& value = row[field];
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    if (number < 0 || number >= static_cast<int64_t>(names.size()))
      fail(field + " is " + value.dump() + ", but adapters.names has " + std::to_string(names.size()) + " names",
           "numbers count from 0: 0 is " + names.front());
    return static_cast<int32_t>(number);
  }
  if (!value.is_string()) fail(field + " is neither a number nor a name", "one of " + join(names));
  const auto name = value.get<std::string>();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::string near = did_you_mean(name, names);
    fail("adapters.names has no '" + name + "'", near.empty() ? "names: " + join(names) : near);
  }
  return static_cast<int32_t>(found - names.begin());
}

std::vector<int32_t> adapters_of_documents(const DatasetSpec& spec, const DocumentIndex& index,
                                           const std::vector<bool>& used) {
  if (!spec.has_adapters()) return {};
  std::vector<int32_t> adapters(static_cast<size_t>(index.size()));
  for (int64_t document = 0; document < index.size(); ++document) {
    const auto at = static_cast<size_t>(document);
    if (used.empty() || used[at]) adapters[at] = adapter_of_document(spec, index, document);
  }
  return adapters;
}

}  // namespace trainctl
