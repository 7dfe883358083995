// A part of tokenizer.json, whose errors name the file and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

class JsonPart {
 public:
  /// `path`: "tokenizer.json: normalizer". Both outlive the part.
  JsonPart(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  /// True if the object has the key with a value other than null.
  bool has(const std::string& key) const;
  /// A part of the object; throws EnvError if there is none.
  JsonPart at(const std::string& key) const;
  /// The elements of an array; throws EnvError if it is none.
  std::vector<JsonPart> elements() const;

  std::string text() const;
  int64_t integer() const;
  double number() const;
  bool boolean() const;
  std::string text(const std::string& key, std::string otherwise = {}) const;
  bool boolean(const std::string& key, bool otherwise) const;
  /// The field `type`.
  std::string type() const { return at("type").text(); }

  [[noreturn]] void fail(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace trainctl
