// The config.json of a model folder, read field by field. Each field is read, known not to change the numbers of the
// model, or reported: a field that was not considered could change the results.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

class ModelConfig {
 public:
  using Json = nlohmann::ordered_json;

  /// Reads the config.json of a folder. Throws EnvError if there is none, SpecError if it is not an object with a
  /// model_type.
  explicit ModelConfig(const std::string& folder);
  /// A section of a config, such as rope_scaling; `path` is for messages.
  ModelConfig(const Json& section, std::string file, std::string path);

  const std::string& file() const { return file_; }
  const std::string& type() const { return type_; }

  /// Adds the fields that the config does not have; one that is null remains so. A default of rope_parameters does not
  /// replace rope_scaling, its former name.
  void add_defaults(const Json& defaults);

  /// The value of a field, null if it is absent or null.
  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Each throws SpecError if the value has another kind, and without a default if it is absent.
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  double number(std::string_view name, double fallback) const;
  bool flag(std::string_view name, bool fallback) const;
  std::string text(std::string_view name, const std::string& fallback) const;
  std::vector<std::string> texts(std::string_view name) const;

  /// Throws SpecError: the field has a value that no layer of trainctl computes.
  [[noreturn]] void refuse(std::string_view name, const std::string& hint = {}) const;
  /// Refuses any value of these fields but null, false, 0 and the empty list.
  void refuse_if_set(const std::vector<std::string>& names) const;
  /// Fields that change nothing that trainctl computes.
  void ignore(const std::vector<std::string>& names) const;
  /// Returns the fields with a value that were neither read nor ignored.
  std::vector<std::string> unknown() const;
  /// The probability with which training sets a weight of attention to 0.
  double attention_dropout() const;
  /// Notes for the user: of unknown fields, and of other dropouts, which act only in training.
  std::vector<std::string> notes() const;

 private:
  const Json& demand(std::string_view name) const;
  [[noreturn]] void refuse_kind(std::string_view name, std::string_view expected) const;

  std::string file_, path_, type_;
  Json json_;
  mutable std::set<std::string, std::less<>> seen_;
};

}  // namespace trainctl
