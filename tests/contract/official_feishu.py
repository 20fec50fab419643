"""Drives the simulated Feishu with the vendor's own client, in a process of its own: that client keeps tokens for the whole process.

python -m tests.contract.official_feishu ADDRESS < what.json        prints what it understood, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tests.simulators.feishu_events import ENCRYPT_KEY, VERIFICATION_TOKEN
from tests.simulators.feishu_gate import APP_ID, APP_SECRET


def read(url: str, what: Mapping[str, str]) -> dict[str, Any]:
    """What the client makes of the simulator's answers: lists as lists of tokens, refusals as codes."""
    lark = import_module("lark_oapi")
    drive, docx, wiki = (import_module(f"lark_oapi.api.{name}") for name in ("drive.v1", "docx.v1", "wiki.v2"))
    sheets, bitable = (import_module(f"lark_oapi.api.{name}") for name in ("sheets.v3", "bitable.v1"))
    client = lark.Client.builder().app_id(APP_ID).app_secret(APP_SECRET).domain(url).log_level(lark.LogLevel.CRITICAL).build()
    seen: dict[str, Any] = {"files": [], "blocks": [], "words": []}

    cursor, more = "", True
    while more:
        request = drive.ListFileRequest.builder().folder_token(what["folder"]).page_size(2)
        answer = client.drive.v1.file.list((request.page_token(cursor) if cursor else request).build())
        seen["files"] += [[file.token, file.type, file.name] for file in answer.data.files]
        more, cursor = answer.data.has_more, answer.data.next_page_token
    cursor, more = "", True
    while more:
        request = docx.ListDocumentBlockRequest.builder().document_id(what["document"]).page_size(3).document_revision_id(-1)
        answer = client.docx.v1.document_block.list((request.page_token(cursor) if cursor else request).build())
        for block in answer.data.items:
            seen["blocks"].append([block.block_type, len(block.children or ())])
            held = block.text or block.heading1 or block.bullet
            seen["words"] += [e.text_run.content for e in held.elements if e.text_run] if held else []
            seen["cells"] = len(block.table.cells) if block.table else seen.get("cells", 0)
        more, cursor = answer.data.has_more, answer.data.page_token
    seen["revision"] = client.docx.v1.document.get(docx.GetDocumentRequest.builder().document_id(what["document"]).build()).data.document.revision_id
    nodes = client.wiki.v2.space_node.list(wiki.ListSpaceNodeRequest.builder().space_id(what["space"]).build()).data.items
    seen["nodes"] = [[node.obj_token, node.obj_type, node.has_child] for node in nodes]
    asked = [drive.RequestDoc.builder().doc_token(what[key]).doc_type("docx").build() for key in ("document", "gone")]
    metas = client.drive.v1.meta.batch_query(
        drive.BatchQueryMetaRequest.builder().request_body(drive.MetaRequest.builder().request_docs(asked).build()).build()
    )
    seen["metas"] = [[meta.title for meta in metas.data.metas], [[failed.token, failed.code] for failed in metas.data.failed_list]]
    pages = client.sheets.v3.spreadsheet_sheet.query(sheets.QuerySpreadsheetSheetRequest.builder().spreadsheet_token(what["sheet"]).build())
    seen["pages"] = [[page.title, page.grid_properties.row_count] for page in pages.data.sheets]
    body = bitable.SearchAppTableRecordRequestBody.builder().build()
    search = bitable.SearchAppTableRecordRequest.builder().app_token(what["base"]).table_id(what["table"]).request_body(body).build()
    seen["records"] = [record.fields for record in client.bitable.v1.app_table_record.search(search).data.items]
    medium = client.drive.v1.media.download(drive.DownloadMediaRequest.builder().file_token(what["medium"]).build())
    seen["medium"] = [medium.file_name, medium.file.read().decode()]
    deleted = client.docx.v1.document.get(docx.GetDocumentRequest.builder().document_id(what["gone"]).build())
    seen["deleted"] = [deleted.success(), deleted.code]
    return seen


def hear(events: list[dict[str, Any]]) -> list[Any]:
    """What the vendor's receiver says to each event: its status, and the file that it names."""
    lark = import_module("lark_oapi")
    raw = import_module("lark_oapi.core.model").RawRequest
    heard: list[Any] = []
    named: list[str] = []
    receiver = lark.EventDispatcherHandler.builder(ENCRYPT_KEY, VERIFICATION_TOKEN, lark.LogLevel.CRITICAL)
    receiver = receiver.register_p2_drive_file_edit_v1(lambda data: named.append(data.event.file_token)).build()
    for event in events:
        request = raw()
        request.uri, request.headers, request.body = "/events", event["headers"], event["body"].encode()
        answer = receiver.do(request)
        heard.append([answer.status_code, json.loads(answer.content).get("challenge", ""), named[:]])
        named.clear()
    return heard


if __name__ == "__main__":
    told = json.load(sys.stdin)
    print(json.dumps({**read(sys.argv[1], told), "heard": hear(told["events"])}))
