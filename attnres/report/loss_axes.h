// The axes of plots of losses over training.
#pragma once

#include <cmath>
#include <vector>

#include "attnres/plots/plot.h"

namespace attnres {

struct Points {
  std::vector<double> x, y;  // as long as each other, x ascending
};

// The steep start would flatten everything after it: the axis begins at the highest loss that comes
// after the first fifth of the training, with the lowest as its other end.
class LossRange {
 public:
  void include(const Points& points);
  bool cuts() const { return start_ > high_ + margin(); }
  void set(LinePlot& plot) const;

 private:
  double margin() const { return high_ > low_ ? 0.06 * (high_ - low_) : 0.1; }

  double low_ = INFINITY, high_ = -INFINITY, start_ = -INFINITY;
};

// Names the x axis and divides its values by a unit of which the furthest is two or more:
// "tokens (million)", "training time (minutes)".
void scale_to_tokens(LinePlot& plot);
void scale_to_time(LinePlot& plot);

}  // namespace attnres
