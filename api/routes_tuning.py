"""How a collection is searched, and where its refusals begin."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer
from api.auth import need_write
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import CalibrateIn, TuningIn
from pipeline.calibrate import Labelled
from workers.tuning_views import CalibrationView
from workers.views import CollectionView

router = APIRouter(route_class=GuardedRoute, prefix="/collections", tags=["collections"])


@router.patch("/{name}", response_model=CollectionView, summary="Change how a collection is searched")
def tune_collection(request: Request, name: str, body: TuningIn) -> Response:
    """What is left out stays; null takes a setting back. Values that come with a question win over these."""
    who, platform = who_of(request), platform_of(request)
    need_write(who, name)
    platform.tunings.tune(name, body.model_dump(exclude_unset=True), tenant=who.tenant)
    return answer(platform.collection(name, tenant=who.tenant))


@router.post("/{name}/calibrate", response_model=CalibrationView, summary="Take the refusal threshold from labelled questions")
def calibrate_collection(request: Request, name: str, body: CalibrateIn) -> Response:
    """Of all thresholds that refuse at most `cap` of the answerable questions, the one that tells both kinds apart best. It holds for
    the generation that answers now."""
    who = who_of(request)
    need_write(who, name)
    questions = [Labelled(one.question, one.answerable) for one in body.questions]
    return answer(platform_of(request).tunings.calibrate(name, questions, cap=body.cap, dry_run=body.dry_run, tenant=who.tenant))
