"""Times of frames: they add up to the clip's, whatever its frames a second."""

from __future__ import annotations

import pytest

from mmspec.eval.frame_times import frame_times, gif_times


@pytest.mark.parametrize("fps", [1, 7, 16, 24, 30, 60, 240])
@pytest.mark.parametrize("units", [100, 1000])
def test_no_frame_drifts(fps, units):
    shown = 0
    for n, time in enumerate(frame_times(145, fps, units)):
        assert abs(shown - n * units / fps) <= 0.5
        shown += time
    assert abs(shown - 145 * units / fps) <= 0.5


@pytest.mark.parametrize("fps", [1, 10, 16, 24, 50])
def test_gif_has_every_frame(fps):
    found = gif_times(45, fps)
    assert list(found) == list(range(45))
    assert list(found.values()) == [10 * time for time in frame_times(45, fps, 100)]
    assert min(found.values()) >= 20


@pytest.mark.parametrize(("fps", "step"), [(51, 2), (60, 2), (100, 2), (120, 3), (240, 5)])
def test_a_quick_gif_leaves_frames_out_and_keeps_its_pace(fps, step):
    for count in (1, 2, 44, 45):
        found = gif_times(count, fps)
        assert list(found) == list(range(0, count, step))
        assert abs(sum(found.values()) - 1000 * count / fps) <= 5
        assert all(time >= 20 for time in list(found.values())[:-1])
