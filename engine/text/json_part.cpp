// A part of tokenizer.json, whose errors name the file and the field.
#include "engine/text/json_part.h"

#include <limits>

#include "engine/base/error.h"

namespace trainctl {

void JsonPart::fail(const std::string& what) const { throw EnvError(path_ + ": " + what); }

bool JsonPart::has(const std::string& key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonPart JsonPart::at(const std::string& key) const {
  if (!value_->is_object()) fail("expected an object with '" + key + "'");
  const auto found = value_->find(key);
  if (found == value_->end()) fail("'" + key + "' is missing");
  return {*found, path_ + "." + key};
}

std::vector<JsonPart> JsonPart::elements() const {
  if (!value_->is_array()) fail("expected a list");
  std::vector<JsonPart> parts;
  parts.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) parts.emplace_back((*value_)[i], path_ + "[" + std::to_string(i) + "]");
  return parts;
}

std::string JsonPart::text() const {
  if (!value_->is_string()) fail("expected text");
  return value_->get<std::string>();
}

int64_t JsonPart::integer() const {
  if (!value_->is_number_integer() ||
      (value_->is_number_unsigned() && value_->get<uint64_t>() > std::numeric_limits<int32_t>::max()))
    fail("expected an integer below 2,147,483,648");
  return value_->get<int64_t>();
}

double JsonPart::number() const {
  if (!value_->is_number()) fail("expected a number");
  return value_->get<double>();
}

bool JsonPart::boolean() const {
  if (!value_->is_boolean()) fail("expected true or false");
  return value_->get<bool>();
}

std::string JsonPart::text(const std::string& key, std::string otherwise) const {
  return has(key) ? at(key).text() : std::move(otherwise);
}

bool JsonPart::boolean(const std::string& key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

}  // namespace trainctl
