// Makes the specs of data sets and transforms for tests.
#pragma once

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

namespace trainctl {

inline TransformSpec named_transform(const std::string& name, Attrs attrs = {}) {
  return {name, attrs, "dataset.transforms[0]"};
}

/// The field and the message of the first SpecError that `run` throws; "no error" if it throws none.
inline std::string spec_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const SpecError& error) {
    const Diagnostic& d = error.diagnostics().at(0);
    return d.path + ": " + d.message;
  }
  return "no error";
}

/// The data set of an mnist folder.
inline DatasetSpec mnist(const std::string& path) {
  DatasetSpec spec;
  spec.type = "mnist";
  spec.paths = {path};
  return spec;
}

}  // namespace trainctl
