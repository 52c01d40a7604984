// What the ranks of a job left in its --log-dir, put together: `ringmark inspect LOGDIR`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ringmark::cluster {

// True for a folder in which ranks left logs, reports of waits, first causes or notes of signals.
bool is_log_folder(const std::string& path);

// Prints a table and the answer; returns the same as JSON. What is no JSON, as the last line of a log whose writer was
// killed, is left out.
nlohmann::ordered_json inspect_log_folder(const std::string& path);

}  // namespace ringmark::cluster
