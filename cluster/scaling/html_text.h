// Text as it stands in HTML, in elements and between double quotes.
#pragma once

#include <string>
#include <string_view>

namespace ringmark::cluster {

inline std::string html_text(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      case '\'': html += "&#39;"; break;
      default: html += c;
    }
  }
  return html;
}

}  // namespace ringmark::cluster
