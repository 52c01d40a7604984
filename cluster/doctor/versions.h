// Versions of everything that must fit together across the ranks of a job.
#pragma once

#include <map>
#include <string>

namespace ringmark::cluster {

// By product; what is not there is left out. "binary" is a hash of this executable.
std::map<std::string, std::string> find_versions(const std::string& driver);

}  // namespace ringmark::cluster
